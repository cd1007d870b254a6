package mqtt

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt/audit"
	"github.com/forebay-gateway/forebay/mqtt/auth"
	"github.com/forebay-gateway/forebay/mqtt/wire"
)

// Config is what an operator sets.
type Config struct {
	// Addresses where clients connect.
	Listeners []ListenerConfig `yaml:"listeners"`

	// Who may come in, and what clients may do.
	Auth auth.Config `yaml:"auth"`

	// Record of who came in, who was refused, and who changed what.
	Audit audit.Config `yaml:"audit"`

	// Time between two looks at the certificates, keys, CAs and revocation lists of the listeners. Changed ones are used
	// from the next connection on; with a fault in one, the old ones stay in force and health says so. 0 is never: they
	// are read again with SIGHUP only.
	CertificateReloadInterval unit.Duration `yaml:"certificate_reload_interval"`

	// Connections of all listeners at the same time. 0, and any number above it, is what the limit of open files of the
	// process leaves when some are kept back for the spool and Kafka. Who is above it is refused (0x97).
	MaxConnections int `yaml:"max_connections"`

	// Sessions, of clients that are connected and of clients that are away. Beyond it a client that has none is refused with
	// 0x97 (3.1.1: 0x03). 0 is no limit.
	MaxSessions int `yaml:"max_sessions"`

	// Size of the client IDs, topic filters and wills of all sessions. They are in memory, and in the spool's state, which
	// retention does not make smaller. Beyond it new sessions, wills and subscriptions are refused with 0x97. 0 is no limit.
	MaxSessionsSize unit.Bytes `yaml:"max_sessions_size"`

	// New connections in a second, all listeners together, as in connection_rate of a listener. 0 is no limit.
	ConnectionRate int `yaml:"connection_rate"`

	// What all clients together may send; they wait for each other when it is more.
	Rate RateConfig `yaml:"rate"`

	// What one client may send. A listener may say otherwise.
	ClientRate RateConfig `yaml:"client_rate"`

	// How much of a rate may come at once, as the time that it stands for.
	RateBurst unit.Duration `yaml:"rate_burst"`

	// What becomes of a client that has sent more than its client_rate for over_rate_time, although it was read no faster
	// than that: slow (nothing else), refuse (MQTT 5 publishes are answered with 0x97, those of QoS 0 dropped, MQTT 3.1.1
	// connections closed) or disconnect (0x96, or 0x97 for the bytes).
	WhenOverRate string `yaml:"when_over_rate"`

	// See when_over_rate.
	OverRateTime unit.Duration `yaml:"over_rate_time"`

	// Largest packet that a client may send; told to MQTT 5 clients.
	MaxPacketSize unit.Bytes `yaml:"max_packet_size"`

	// Largest CONNECT, will included. Smaller than max_packet_size, because its sender is not known yet.
	MaxConnectSize unit.Bytes `yaml:"max_connect_size"`

	// Percent of the processors that TLS handshakes may compute on while clients that are in publish, 1 to 50; else it is half of the
	// processors, one at least. More lets a storm of clients in sooner, and lets those who are in wait longer for their acknowledgements meanwhile.
	HandshakeShare int `yaml:"handshake_share"`

	// Connections from one address (of IPv6 a /64) to one listener that have not been let in yet, from the first packet of TCP to CONNACK; 0 is no
	// limit. Who is above it is refused (0x97), on a listener with TLS or WebSocket before the handshake. Whoever is behind one address with
	// more devices than this has them come back in several waves after an outage.
	MaxPendingPerAddress int `yaml:"max_pending_per_address"`

	// QoS 1 and 2 publishes of one connection that may wait for their acknowledgement at once. MQTT 5 clients are told;
	// a 3.1.1 connection at the limit is not read until there is room.
	ReceiveMaximum int `yaml:"receive_maximum"`

	// QoS 1 and 2 deliveries to one client that may be unacknowledged at once; a client may ask for fewer.
	MaxInflight int `yaml:"max_inflight"`

	// Deliveries to one connected client that wait in memory for room in its window. Beyond it they are read from the
	// spool when the client is ready for them.
	MaxQueued int `yaml:"max_queued"`

	// Output waiting for one connection. When it is full, QoS 0 messages for it are dropped and counted, QoS 1 and 2 stay
	// in the spool.
	OutputBuffer unit.Bytes `yaml:"output_buffer"`

	// Output waiting for all connections together, beside one packet each. When it is full, all of them are treated as if
	// their output_buffer were. 0 is no limit.
	OutputMemory unit.Bytes `yaml:"output_memory"`

	// Highest QoS of a publish: 0, 1 or 2. Told to MQTT 5 clients; who publishes above it loses its connection (0x9B), or with
	// such a will is not let in. Subscriptions are granted no more. A listener may say otherwise.
	MaxQoS int `yaml:"max_qos"`

	// Whether clients may publish retained messages, and get them when they subscribe. Told to MQTT 5 clients; who publishes one
	// where there are none loses its connection (0x9A), or with such a will is not let in. A listener may say otherwise.
	RetainAvailable bool `yaml:"retain_available"`

	// Topic aliases that an MQTT 5 client may use on one connection, and that the gateway uses at most towards a client
	// which takes them: the first topics of the connection get one each. 0 is none, in both directions.
	TopicAliasMaximum int `yaml:"topic_alias_maximum"`

	// Longest keep-alive; MQTT 5 clients that ask for more, or for none, are given this. 0 accepts what they ask for.
	MaxKeepAlive unit.Duration `yaml:"max_keep_alive"`

	// Time in which a new connection has to send its CONNECT.
	ConnectTimeout unit.Duration `yaml:"connect_timeout"`

	// Time in which a connection has to take some of the bytes written to it, or it is closed.
	WriteTimeout unit.Duration `yaml:"write_timeout"`

	// How long the connection of an MQTT 3.1.1 client, which cannot be told that there is no room, is kept waiting for
	// room before it is closed without an acknowledgement.
	FullHold unit.Duration `yaml:"full_hold"`

	// Longest session expiry; longer ones are cut to it, those of MQTT 3.1.1 clients without CleanSession too. 0 is no limit.
	SessionExpiryMax unit.Duration `yaml:"session_expiry_max"`

	// How long records stay in the spool for a session that is offline and has not got them, even when the spool is full
	// and publishers have to wait. Records of sessions that are offline for longer go by the retention of their stream. 0
	// keeps none.
	ProtectSessions unit.Duration `yaml:"protect_sessions"`

	// Longest time that a message waits in the spool for a session that is offline or slow. 0: as long as its stream keeps it.
	MaxBehindTime unit.Duration `yaml:"max_behind_time"`

	// Records that a session may be behind, in all partitions together and whether its filters match them or not. 0 is no
	// limit.
	MaxBehindRecords int `yaml:"max_behind_records"`

	// Size of the records that a session may be behind, as above, by the mean size of a record of its stream on disk. 0 is no
	// limit.
	MaxBehindSize unit.Bytes `yaml:"max_behind_size"`

	// What becomes of a session that is further behind: drop_oldest (it goes on within the limits, what it has lost is
	// counted and logged) or end_session (its client is disconnected and begins anew). Share groups always go on.
	WhenBehind string `yaml:"when_behind"`

	// Levels of a topic or topic filter.
	MaxTopicLevels int `yaml:"max_topic_levels"`

	// Bytes of a topic or topic filter.
	MaxTopicLength int `yaml:"max_topic_length"`

	// User properties of a PUBLISH or a will. Of other packets at most 1024 are taken.
	MaxUserProperties int `yaml:"max_user_properties"`

	// Take-overs of one client ID (a client connects while another one of its client ID is connected) that pass at once.
	// After them the next one waits, longer and longer up to take_over_interval, and the log names the client ID: two
	// clients that have the same one would else do nothing but throw each other out.
	TakeOverBurst int `yaml:"take_over_burst"`

	// Time after which another take-over passes at once, and the longest that one waits. 0 does not slow down any.
	TakeOverInterval unit.Duration `yaml:"take_over_interval"`

	// Subscriptions of one client; 0 is no limit. A packet may name as many filters, 1000 at least, without a limit 65,536.
	MaxSubscriptions int `yaml:"max_subscriptions"`

	// Topics with a retained message; 0 is no limit.
	MaxRetained int `yaml:"max_retained"`

	// Size of all retained messages with their topics and properties; 0 is no limit. They are in memory, and in the
	// spool's state, which retention does not make smaller: keep it well below spool.max_size.
	MaxRetainedSize unit.Bytes `yaml:"max_retained_size"`

	// Time between two checkpoints of a session's position. After a crash, QoS 1 deliveries of that time may be repeated.
	CheckpointInterval unit.Duration `yaml:"checkpoint_interval"`

	// Where clients go when this server stops, such as gw2.example.com:1883: MQTT 5 clients are told "use another server"
	// (0x9C) with it instead of "server shutting down". Empty tells nothing.
	ServerReference string `yaml:"server_reference"`

	// The clients belong to the server of server_reference for good: whoever connects is refused with "server moved" (0x9D) and
	// that reference, after it has shown who it is; MQTT 3.1.1 clients with 0x03. So does a stop tell those who are connected.
	ServerMoved bool `yaml:"server_moved"`

	// First part of the topics on which a client may get responses: an MQTT 5 client that asks for response information is
	// told {prefix}{client ID}. The ACL has to allow it. Empty tells nothing.
	ResponseTopicPrefix string `yaml:"response_topic_prefix"`

	// Time between two updates of the $SYS topics, which are those of Mosquitto. 0 is none of them.
	SysInterval unit.Duration `yaml:"sys_interval"`

	// Sessions that are served from the spool at the same time, because they were offline or are slow.
	CatchUpWorkers int `yaml:"catch_up_workers"`

	// Memory for records that were read for one of those sessions and may serve the next one. 0 is none.
	CatchUpCache unit.Bytes `yaml:"catch_up_cache"`
}

// DefaultConfig is the configuration of an empty file.
func DefaultConfig() Config {
	return Config{
		Listeners: []ListenerConfig{
			{Name: "tcp", Type: ListenerTCP, Address: "127.0.0.1:1883"},
			{Name: "websocket", Type: ListenerWebSocket, Address: "127.0.0.1:8083", Path: "/mqtt"},
		},
		Auth:  auth.DefaultConfig(),
		Audit: audit.DefaultConfig(),

		CertificateReloadInterval: unit.Duration(5 * time.Second),

		MaxSessions:     1_000_000,
		MaxSessionsSize: 512 << 20,
		MaxPacketSize:   1 << 20,
		MaxConnectSize:  64 << 10,
		HandshakeShare:  12,

		MaxPendingPerAddress: 2048, // twice of what max_handshakes lets come from all
		ReceiveMaximum:       1024,
		MaxInflight:          1024,
		MaxQueued:            1000,
		OutputBuffer:         1 << 20,
		OutputMemory:         512 << 20,
		MaxQoS:               2,
		RetainAvailable:      true,
		TopicAliasMaximum:    32,
		MaxKeepAlive:         unit.Duration(time.Hour),
		ConnectTimeout:       unit.Duration(10 * time.Second),
		WriteTimeout:         unit.Duration(20 * time.Second),
		FullHold:             unit.Duration(5 * time.Second),
		SessionExpiryMax:     unit.Duration(7 * 24 * time.Hour),
		ProtectSessions:      unit.Duration(24 * time.Hour),
		TakeOverBurst:        5,
		TakeOverInterval:     unit.Duration(5 * time.Second),
		WhenBehind:           behindDropOldest,
		MaxTopicLevels:       256,
		MaxTopicLength:       65535,
		MaxUserProperties:    128,
		RateBurst:            unit.Duration(time.Second),
		WhenOverRate:         overRateSlow,
		OverRateTime:         unit.Duration(10 * time.Second),
		MaxSubscriptions:     1000,
		MaxRetained:          1_000_000,
		MaxRetainedSize:      256 << 20,
		CheckpointInterval:   unit.Duration(100 * time.Millisecond),
		SysInterval:          unit.Duration(10 * time.Second),
		CatchUpCache:         32 << 20,
		CatchUpWorkers:       4,
	}
}

// Validate reports everything that is wrong, each with the key that has to change.
func (c Config) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	between := func(key string, v, low, high int) {
		if v < low || v > high {
			fault("%s: %d is not between %d and %d", key, v, low, high)
		}
	}
	size := func(key string, v, low, high unit.Bytes) {
		if v < low || v > high {
			fault("%s: %v is not between %v and %v", key, v, low, high)
		}
	}
	span := func(key string, v unit.Duration, low, high time.Duration) {
		if v.Std() < low || v.Std() > high {
			fault("%s: %v is not between %v and %v", key, v, unit.Duration(low), unit.Duration(high))
		}
	}

	names := make(map[string]int)
	for i, l := range c.Listeners {
		key := fmt.Sprintf("listeners[%d]", i)
		if j, ok := names[l.Name]; ok {
			fault("%s.name: %q is already the name of listeners[%d]", key, l.Name, j)
		}
		names[l.Name] = i
		l.validate(func(format string, args ...any) { fault(key+format, args...) })
	}
	var own []auth.ListenerConfig
	for _, l := range c.Listeners {
		own = append(own, l.Auth)
	}
	errs = append(errs, c.Auth.Validate(own...), c.Audit.Validate())
	span("certificate_reload_interval", c.CertificateReloadInterval, 0, 24*time.Hour)
	if c.MaxConnections < 0 {
		fault("max_connections: %d is negative", c.MaxConnections)
	}
	if c.MaxSessions < 0 {
		fault("max_sessions: %d is negative", c.MaxSessions)
	}
	size("max_sessions_size", c.MaxSessionsSize, 0, 1<<40)
	size("max_packet_size", c.MaxPacketSize, 1<<10, maxPacketSize)
	size("max_connect_size", c.MaxConnectSize, 256, c.MaxPacketSize)
	between("max_pending_per_address", c.MaxPendingPerAddress, 0, 1<<30)
	between("handshake_share", c.HandshakeShare, 1, mostHandshakeShare)
	between("receive_maximum", c.ReceiveMaximum, 1, 65535)
	between("max_inflight", c.MaxInflight, 1, maxWindow)
	between("max_queued", c.MaxQueued, 0, 1<<20)
	size("output_buffer", c.OutputBuffer, 4<<10, 1<<30)
	size("output_memory", c.OutputMemory, 0, 1<<40)
	between("max_qos", c.MaxQoS, 0, 2)
	between("topic_alias_maximum", c.TopicAliasMaximum, 0, 65535)
	span("max_keep_alive", c.MaxKeepAlive, 0, 65535*time.Second)
	span("connect_timeout", c.ConnectTimeout, 100*time.Millisecond, time.Hour)
	span("write_timeout", c.WriteTimeout, 100*time.Millisecond, time.Hour)
	span("full_hold", c.FullHold, 0, time.Hour)
	if c.SessionExpiryMax < 0 {
		fault("session_expiry_max: %v is negative", c.SessionExpiryMax)
	}
	if c.ProtectSessions < 0 {
		fault("protect_sessions: %v is negative", c.ProtectSessions)
	}
	between("take_over_burst", c.TakeOverBurst, 0, 1000)
	span("take_over_interval", c.TakeOverInterval, 0, time.Minute)
	if c.MaxBehindTime < 0 {
		fault("max_behind_time: %v is negative", c.MaxBehindTime)
	}
	if c.MaxBehindRecords < 0 {
		fault("max_behind_records: %d is negative", c.MaxBehindRecords)
	}
	if c.MaxBehindSize < 0 {
		fault("max_behind_size: %v is negative", c.MaxBehindSize)
	}
	if c.WhenBehind != behindDropOldest && c.WhenBehind != behindEndSession {
		fault("when_behind: %q is neither %s nor %s", c.WhenBehind, behindDropOldest, behindEndSession)
	}
	between("max_topic_levels", c.MaxTopicLevels, 1, 65535)
	between("max_topic_length", c.MaxTopicLength, 1, 65535)
	between("max_user_properties", c.MaxUserProperties, 0, wire.MaxUserProperties)
	between("max_connections", c.MaxConnections, 0, 1<<30)
	between("connection_rate", c.ConnectionRate, 0, 1<<30)
	c.Rate.validate("rate", fault)
	c.ClientRate.validate("client_rate", fault)
	span("rate_burst", c.RateBurst, 10*time.Millisecond, time.Minute)
	if !slices.Contains([]string{overRateSlow, overRateRefuse, overRateDisconnect}, c.WhenOverRate) {
		fault("when_over_rate: %q is not %s, %s or %s", c.WhenOverRate, overRateSlow, overRateRefuse, overRateDisconnect)
	}
	span("over_rate_time", c.OverRateTime, 0, time.Hour)
	if c.MaxSubscriptions < 0 {
		fault("max_subscriptions: %d is negative", c.MaxSubscriptions)
	}
	if c.MaxRetained < 0 {
		fault("max_retained: %d is negative", c.MaxRetained)
	}
	size("max_retained_size", c.MaxRetainedSize, 0, 1<<40)
	span("checkpoint_interval", c.CheckpointInterval, 10*time.Millisecond, time.Minute)
	if len(c.ServerReference) > 1024 || !utf8.ValidString(c.ServerReference) {
		fault("server_reference: is no text of at most 1024 bytes")
	}
	if c.ServerMoved && c.ServerReference == "" {
		fault("server_moved: needs server_reference: where to?")
	}
	if len(c.ResponseTopicPrefix) > 1024 || !utf8.ValidString(c.ResponseTopicPrefix) || strings.ContainsAny(c.ResponseTopicPrefix, "+#\x00") {
		fault("response_topic_prefix: %q cannot begin a topic name", c.ResponseTopicPrefix)
	}
	if c.SysInterval != 0 {
		span("sys_interval", c.SysInterval, 100*time.Millisecond, time.Hour)
	}
	size("catch_up_cache", c.CatchUpCache, 0, 64<<30)
	between("catch_up_workers", c.CatchUpWorkers, 1, 256)
	return errors.Join(errs...)
}

const (
	maxPacketSize = 256 << 20 // the protocol's own limit: a length of four bytes of seven bits
	maxWindow     = 16384     // half of what packet identifiers in order can tell apart, see flights
)
