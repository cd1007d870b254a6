// Package fleet is a fleet of simulated devices that counts what it sends, and the two witnesses that count what arrives.
//
// Every device publishes numbered messages: the device and the sequence number stand in the payload, beside readings as
// real telemetry has them and a checksum. The ledger knows of every message whether it was sent and whether the broker
// acknowledged it (PUBACK, or PUBREC for QoS 2: with both the broker takes the message over). Checkers mark what
// arrives: one for each subscriber over MQTT and one for the Kafka topics. At the end the ledger gives its verdict:
//
//   - missing: acknowledged, and never seen by a checker to which it was promised
//   - doubled: a QoS 2 message that a QoS 2 subscriber got twice; elsewhere doubles are counted, and are faults only
//     when the run is strict
//   - taken twice: a QoS 2 message that stands in the broker's log under two IDs (needs Config.IDHeader)
//   - reordered: a message whose first appearance came after that of a later one of the same device. A redelivered
//     duplicate is no reorder. Subscribers are held to the order within one QoS, as the standard promises it (MQTT 5,
//     4.6); Kafka is held to the order of the device across all QoS, as a log promises it
//   - invented: a message that was never sent, or whose content is not what was sent
//   - unsettled: sent with QoS 1 or 2, and neither acknowledged nor refused when the run ended
//
// QoS 0 is counted and reported, and never missing: it promises nothing.
//
// Devices are built on paho.golang and keep their session over a broken connection, so that a broker may be killed in
// the middle of a run: what was in flight is sent again with its packet identifier, as the standard demands. Messages
// are pipelined: a device has up to Config.Window of them outstanding.
//
// The package speaks MQTT and Kafka only and knows nothing of the gateway that it tests.
package fleet
