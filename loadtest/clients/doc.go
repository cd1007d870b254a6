// Package clients holds tests of the real binary with clients that we did not write.
//
// The matrix (TestClientsEmbedded) takes mosquitto_pub and mosquitto_sub, Eclipse Paho for C, paho.golang,
// paho.mqtt.golang and MQTT.js through the same scenarios, each with the versions and transports that it has: every QoS,
// properties, retained messages, a will, a session that outlives its connection, a shared subscription. A foreign is one
// client, an env is one cell of the matrix. Clients that are no Go packages are programs: pahoc/client.c and
// mqttjs/client.mjs speak the line protocol that process_test.go describes.
//
// On the Kafka side kcat, a consumer on librdkafka, reads what paho.golang published.
//
// The tests need those clients (Debian: mosquitto-clients, libpaho-mqtt-dev, kcat, a C compiler; Node.js with npm for
// MQTT.js) and are left out of short test runs. `make test-clients` runs them.
package clients
