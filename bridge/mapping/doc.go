// Package mapping says what becomes of a record on its way to Kafka: whether a route sends it, and with which topic, key,
// partition, headers, timestamp and value.
//
// Templates (template.go) and conditions (condition.go) are made when the configuration is loaded, and every fault of them is
// found then. They look at the same fields (field.go): what the PUBLISH said, and the payload if it is JSON. JSON is parsed at
// most once a record, and only when a template or a condition asks for it (json.go); numbers keep every digit that the
// device wrote.
//
// Whatever a device sends, a mapping ends with one of: send it, leave it out (which is counted by reason), or make it a dead
// letter. It never waits, and the same record always gives the same answer, however often and by whatever process it is
// asked: a lane that catches up finds its own records.
//
// Kafka topics (topic.go) are legal by construction, and two different inputs never share one unless the template says so.
package mapping
