// Package downlink brings records of Kafka topics to MQTT.
//
// A [Config] names topics of one upstream and says which MQTT publish becomes of each record. The [Engine] reads them with a consumer
// that is in no group, and hands each publish to a [Front] together with the Kafka offset behind it. Both become durable in one group of
// the spool's journal: after a crash, at whatever moment, the next run goes on behind the last record that is in the spool. So a record is
// in the spool once, neither lost nor doubled, and from there it is delivered as any other publish.
//
// Positions are the gateway's own, and not a consumer group's, for that reason: a group's offsets are committed in another place than the
// records, and one of the two would be ahead after a crash. It also means that every gateway gets every record, which is what commands to
// devices need: who is connected where is not known in Kafka.
//
// Words: a **position** is the offset of the next record of a Kafka partition. A **gap** is a change of a topic under the position: records
// that retention took, a log that was cut off, a topic that was deleted and made again. **Poison** is a record of which no publish can be
// made; it becomes a dead letter, with the position, and holds nothing.
//
// Order: records of a Kafka partition are in one partition of the spool, in their order, if the streams are partitioned by client ID, which is
// the default: their client ID is that of the Kafka partition.
//
// Limits: what a partition has read and not appended is lost from memory at a stop, and read again. A transaction that is open holds its
// partition, as for every consumer of committed records.
package downlink
