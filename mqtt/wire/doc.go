// Package wire turns the bytes of MQTT clients into packets and packets for them into bytes.
package wire
