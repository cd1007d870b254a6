// Package mqtttest holds what tests of an MQTT server need: a raw client that sends hand-made bytes and says what came
// back, and a corpus of packets that a server must refuse. It reads packets with the library's codec and writes bytes of
// its own, so that it shares no code with what it tests.
package mqtttest
