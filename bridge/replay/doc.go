// Package replay sends a span of the past again.
//
// A job reads a range of a stream, by offset or by time of reception, through whatever holds it, memory, segments or the store of
// cold ones, and hands the records that its filters select to a [Sink]: a route, an upstream, or the gateway's own MQTT subscribers.
// It has a position in each partition that is its own: no cursor of a route or a session moves, and none is held.
//
// # Words
//
// The range of a job is settled when it is made: offsets [From, To) of each partition, To at most the log end of that moment, and,
// for a range of time, the times [since, until) of reception. A page is what a partition has on the way at once. A gap are offsets of
// the range that were gone before the job came to them.
//
// # Guarantees
//
// Every record of the range that is selected, is there when the job comes to it, and whose time is not over, is sent at least once, in
// the order of its partition. A position moves only behind records that have an outcome: acknowledged by all in-sync replicas,
// durable in the stream that MQTT subscribers read, left out by the route's mapping, or refused by Kafka for good, which is counted
// and shown. Job and positions are state of the spool: they survive whatever happens to the process.
//
// What a crash doubles is at most one page of each partition towards Kafka (at most MaxPage records), and nothing towards MQTT, where a
// record and the position behind it are one entry of the journal. Whoever counts finds the same forebay.id on both.
//
// # Limits
//
// A record whose time is over is not sent, as nobody gets it any more; it is counted. The range is what is in the log when the job is
// made: it does not follow what comes after. Retention does not wait for a job.
package replay
