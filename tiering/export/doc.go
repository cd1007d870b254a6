// Package export writes records as files that tools for data read: Parquet, and JSON lines.
//
// Columns: time, partition, offset, client, user, topic, qos, retain, expires, the properties of the PUBLISH, payload, and one for each
// JSON field that is asked for. A file has its name only when it is whole.
package export
