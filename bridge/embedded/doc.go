// Package embedded is a Kafka broker inside the process, so that a gateway can be tried without a Kafka cluster.
//
// It is kfake, the fake broker of the franz-go project, on a data directory, with what that lacks for the purpose: a lock
// on the directory, and retention for every topic, by age and size. Real clients (kcat, librdkafka, Java) can consume from it.
//
// It is not for production. It is one node and syncs nothing. Killed without a clean stop it keeps its records, but may
// double some of a producer's, may hide a transaction's from readers of committed records, and forgets topics that clients
// made by using them (those of routes stay). Real Kafka refuses more: names of topics, null keys on compacted topics,
// timestamps.
package embedded
