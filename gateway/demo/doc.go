// Package demo shows a whole Forebay at work on one machine: simulated devices publish in bursts, the gateway spools and
// acknowledges, a subscriber reads over MQTT, and an embedded Kafka broker takes what the bridge sends. Half-way the
// broker can go away for some seconds, so that one sees the spool take the flood and drain afterwards.
//
// It is no show: devices, subscriber and Kafka consumer are those of loadtest/fleet, every message is numbered, and the
// demo ends with the totals and an error unless each acknowledged message was found at the subscriber and in Kafka.
//
// On a terminal the numbers stand still and change in place; elsewhere there is one line a second.
package demo
