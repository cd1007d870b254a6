// Package gateway puts a Forebay together: it builds the parts from the configuration, starts and stops them in a written
// order with deadlines (lifecycle.go), and says how they are (health.go).
//
// A Gateway is one start and one stop: New, Run, and Run returns when its context ends and every part has stopped. A part
// that cannot start ends Run with its error, after the parts before it have been stopped. A part that fails later does not
// take the others with it: it is logged with what to do, readiness goes, and the rest serves on, because what is in the spool
// can still be delivered.
//
// The gateway is the only place that knows all parts; they see each other through the small interfaces that stand in their
// own packages.
package gateway
