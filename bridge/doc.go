// Package bridge carries records from the spool to Kafka.
//
// A route selects the records of a stream by topic filters and makes a Kafka record of each: topic, key, headers, timestamp
// (route.go, template.go). An upstream is a Kafka cluster (package kafka); embedded is one inside the process, for trying
// things out.
//
// For each route and spool partition a feeder reads the tail of the log and spreads records over lanes, one for each Kafka
// partition (feeder.go, lane.go). A lane has one flight in the air and some records pending; a feeder that meets a full lane
// waits for it a moment, and then detaches it: the lane keeps its own position and catches up on its own (catchup.go), while
// the others go on. An upstream that is away holds its routes and detaches nothing.
//
// Guarantees. The cursor of a route passes a record only when it is acknowledged by all in-sync replicas, belongs to a
// detached lane whose own position is durable, is a durable dead letter, is not taken by the route, or is expired. Records
// with the same key of one spool partition arrive in the order of the log. Memory is bounded by the upstream's max_buffered,
// however long it is away.
//
// After kill -9 or a power cut, what was sent since positions were last durable may be in Kafka: a lane that has such records
// reads its partition back first, and leaves out what is there (readback.go). The same when a producer is replaced.
//
// With delivery: exactly_once flights travel in transactions, each with the positions of its lanes behind them in the compacted
// topic forebay.positions (kafka/txn.go). After a crash those positions, read once the old producer is fenced, say
// what is delivered; nothing is doubled, whatever is killed when.
//
// A route may have upstreams to go on with when its own acknowledges nothing (failover.go). A time on one of them is a stint, whose
// feeders know no other (stint.go).
//
// A route that is behind may put what it has not delivered aside, and go on with what is new (backlog.go, split.go).
//
// What Kafka will never take becomes a dead letter, which stays until it is redriven or purged (deadletter.go,
// deadletters.go, redrive.go). Routes and lanes can be paused (pause.go), and held to a rate (rate.go).
//
// Limits. Delivery is at least once, effectively once: reading back cannot see what a broker writes or replicates later than
// 750 ms after the gateway's end, and needs the right to read. What it misses comes twice, with the same forebay.id header. A
// clean stop doubles nothing that was acknowledged by its deadline. A Kafka topic that got more partitions is spread anew when
// its lanes are empty for a moment.
package bridge
