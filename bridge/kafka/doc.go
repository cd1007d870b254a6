// Package kafka ships messages to one Kafka cluster, in order and without inventing an outcome.
//
// A [Client] is one upstream. The bridge hands it a [Flight]: messages of one lane for one partition of one [Topic], in
// order. The client has at most one flight of a Kafka partition in the air, and appends a flight to the producer as a
// whole while no request can leave (gate.go): when the broker refuses a batch, what is refused is always the rest of a
// flight, never a hole in it. The flight's Result says how many leading messages are acknowledged by all in-sync
// replicas, and what the error of the first other one means (errors.go, the one place that knows).
//
// The client never gives a record up: there is no delivery timeout, and retriable errors are retried inside the producer
// for as long as it takes. What it reports besides results is whether the cluster is reachable (by acknowledgements and
// pings, because a network fault never reaches a record) and what each topic allows (topics.go).
//
// Limits: acknowledgements are at least once. A flight whose outcome is unknown because the producer had to be built anew,
// or because the process died, is sent again.
package kafka
