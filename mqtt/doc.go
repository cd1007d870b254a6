// Package mqtt is the MQTT 5 and 3.1.1 front of the gateway: listeners, connections, sessions, flow control.
//
// # Words
//
// A connection (conn) is one network connection. A session is what MQTT means by it; it outlives connections when its
// expiry says so. A lane is one partition of one stream of the log, with one distributor. A feed is a reader of all
// lanes on behalf of a session or of a share group; on each lane it is live (served by the distributor from memory) or
// behind (served from the log by the catch-up workers).
//
// # Inbound
//
// The reader goroutine of a connection decodes a packet, turns a PUBLISH into a spool.Record and appends it. It does not
// wait for the disk: up to Receive Maximum publishes of a connection wait for their commit at once. The acknowledgement is
// written by the completion that the log calls once the record is durable, in the order of the packets, and one flush per
// commit group carries all of them. When the log has no room, Append blocks, the connection is not read, and TCP slows the
// publisher.
//
// A QoS 2 packet identifier becomes durable in the same atomic group as its record, and is deleted (durably) before
// PUBCOMP, so that a record enters the log once, whatever dies in between.
//
// # Outbound
//
// One distributor per lane reads the log's tail, matches each record once, and offers it to the live feeds. QoS 0 goes
// into the connection's output buffer or is dropped and counted. QoS 1 and 2 take a packet identifier and a place in the
// client's window; when the window is full, a bounded number of references waits in memory, and after that the feed is
// behind on the lane and catches up from the log. Nothing at QoS 1 or 2 is lost to a full buffer, and an offline session
// costs nothing per message: it is a position on each lane and its filters.
//
// A feed rejoins the tail under the lane's lock, with its position at or above the distributor's, and every record below
// the position is skipped: no gap and nothing twice.
//
// # Writing
//
// Nobody but the connection's flusher writes to a socket: everybody else appends to a bounded buffer and wakes the
// flusher, which lives only while there is something to write. A peer that does not read is cut off by the write timeout
// and meanwhile holds up nobody, not even its own take-over.
//
// # What survives
//
// Of sessions with an expiry above 0: subscriptions, the position on each lane, packet identifiers in flight in both
// directions, wills with their delay, and the expiry that runs on while the gateway is down. Retained messages. QoS 2
// identifiers are durable before the packet that depends on them leaves; QoS 1 identifiers and positions are written
// every checkpoint_interval, so that a crash may repeat QoS 1 deliveries of that span (as MQTT allows).
//
// # Bounds
//
// What waits for one connection is bounded (output_buffer, max_queued), and what waits for all of them (output_memory).
// What a session may be behind on the log is the operator's choice (max_behind_time, max_behind_records, max_behind_size).
// Sessions that are behind at the same place share what is read (catch_up_cache). Clients that take a client ID from each
// other are slowed down (take_over_burst). A retained message is as its publisher gave it: the ttl of a stream binds what
// the stream delivers, not what is retained.
//
// # Limits
//
// QoS 0 messages are not kept for sessions that are offline. A session whose position has been passed by retention gets a
// counted gap. A client that leaves one delivery unacknowledged for 32,767 later ones gets nothing more until it answers.
// A share group whose members are all without expiry is forgotten with its last member.
package mqtt
