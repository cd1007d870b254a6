// Package audit records who came in, who did not, and who changed what: one event for each, in the log and by choice in a stream of
// the spool.
//
// # Words
//
// An event has a name that does not change (Names has all of them), and fields that are the same in the log and in the stream. In
// the log it is one line with the message "audit"; in the stream one record on the topic $forebay/audit/{name}, a JSON object,
// which spool dump shows, routes take to Kafka and a subscriber with the right to it gets.
//
// # Bounds
//
// Recording never blocks and never fails: an audit that holds up the front would be a way to hold up the front. Each name, and within
// it each address, has a rate; what is above it is counted, and every ten seconds an event says how many of what are missing, and from where. So a storm of
// refusals costs a bounded number of lines and records, and a storm from one address leaves room for the events of others. A stream
// that takes nothing more costs events, counted, and nothing else.
package audit
