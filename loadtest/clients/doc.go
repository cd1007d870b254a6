// Package clients holds tests of the real binary with clients that we did not write: mosquitto_pub and mosquitto_sub,
// MQTT.js over TCP and WebSocket, paho.golang, and kcat on the Kafka side.
//
// They need those programs on the PATH (Debian: mosquitto-clients, kcat; Node.js with npm for MQTT.js) and are left out of
// short test runs. `make test-clients` runs them.
package clients
