// Bench measures the spool against the disk's own limit and against other logs, side by side in one run.
//
//	go run . [-quick] [-json] [-rounds 5] [-time 1.5s] [-only loads,paced,...] [-restart 10GiB] [-dir DIR]
//
// It is a module of its own so that the peers (the NATS server, tidwall/wal) are no dependencies of the gateway.
//
// # Words
//
// A subject is a log that acknowledges durable records. The reference is a plain growing log: all records that wait, in one
// write, one fdatasync. Every subject but NATS and ours gets the same queue in front, which takes whatever waits when the
// last sync has returned. A round runs each subject once; the figure is the median over the rounds of the ratio to the
// reference in the same round, so that a slow minute of the disk slows both. When the rounds of the reference differ by
// more than 2, the figure is marked noisy: believe its neighbours, not it.
//
// Each figure is printed beside its target. A missed target is no failure of the program, which always ends with 0 unless
// something could not be measured.
package main
