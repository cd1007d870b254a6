package spool

import (
	"errors"
	"fmt"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

// DefaultStream is the stream that takes what no other stream takes. It exists even when the configuration names none.
const DefaultStream = "default"

// Config is what an operator sets.
type Config struct {
	// Directory of the spool: journal, segments, meta database. One process at a time. Default: spool below
	// gateway.data_dir.
	Dir string `yaml:"dir"`

	// Hard limit of the bytes on disk, journal, meta database and quarantine included. Near it, delivered segments go
	// first, then each stream does what its when_full says. What was accepted before may take it over the limit, by at most
	// one segment.
	MaxSize unit.Bytes `yaml:"max_size"`

	// Free space that the spool leaves on its file system. Below it the spool counts as full.
	MinFree unit.Bytes `yaml:"min_free"`

	// When an acknowledgement may leave: sync (after the record is on stable storage) or interval (after it is written; a
	// power cut or a crash of the system may lose the last sync_interval, a crash of the gateway loses nothing).
	Sync SyncMode `yaml:"sync"`

	// Time between two syncs with sync: interval.
	SyncInterval unit.Duration `yaml:"sync_interval"`

	// Memory for records that wait for the journal. When it is used up, publishers are not read.
	QueueSize unit.Bytes `yaml:"queue_size"`

	// Memory for the newest records, from which live readers are fed. Three quarters of it may hold records that are in
	// the journal only; when they are used up, publishers are not read until segments have taken them.
	TailSize unit.Bytes `yaml:"tail_size"`

	// Longest time between a cursor's commit and its being durable.
	CommitInterval unit.Duration `yaml:"commit_interval"`

	Journal JournalConfig `yaml:"journal"`
	Segment SegmentConfig `yaml:"segment"`

	Quarantine QuarantineConfig `yaml:"quarantine"`

	// Encryption of everything in dir, off by default.
	Encryption EncryptionConfig `yaml:"encryption"`

	// Named logs. The first stream that has a filter which matches the topic takes the record; stream default takes the
	// rest and may be listed to set its options.
	Streams []StreamConfig `yaml:"streams"`
}

// JournalConfig are the files that an acknowledgement waits for.
type JournalConfig struct {
	// Size of one journal file, zero-filled once and then recycled.
	FileSize unit.Bytes `yaml:"file_size"`

	// Number of journal files.
	Files int `yaml:"files"`
}

// SegmentConfig are the files that keep the records.
type SegmentConfig struct {
	// Stored size at which a segment is sealed and the next begins.
	MaxSize unit.Bytes `yaml:"max_size"`

	// Age at which a segment is sealed and the next begins. Retention removes whole segments, so that a record may stay
	// this much longer than it has to.
	MaxAge unit.Duration `yaml:"max_age"`

	// Compression of records: zstd (small; s2 instead while more than 64 MB a second come), s2 (fast) or none.
	Codec string `yaml:"codec"`
}

// QuarantineConfig is the bound of quarantine/, where damaged files are kept for a human. It counts towards max_size.
type QuarantineConfig struct {
	// Largest size of the damaged files that are kept; the oldest go first, and the log says so. Never more than a quarter of
	// spool.max_size. 0 keeps none.
	MaxSize unit.Bytes `yaml:"max_size"`

	// How long a damaged file is kept; 0 is for ever.
	MaxAge unit.Duration `yaml:"max_age"`
}

// EncryptionConfig is encryption at rest.
type EncryptionConfig struct {
	// Keys that files may be encrypted with. A key that a file needs has to stay here until the last such file is gone:
	// forebay spool ls shows the key of each.
	Keys []KeyConfig `yaml:"keys"`

	// ID of the key that new files are encrypted with; 0 does not encrypt new files. To change the key, list a new one
	// and make it the active one; files of the old one stay readable.
	Active int `yaml:"active"`
}

// KeyConfig is one key.
type KeyConfig struct {
	// Number of the key, 1 to 65535. It stands in every file that the key encrypts: a number is never used for another key.
	ID int `yaml:"id"`

	// File that holds the 32 bytes of the key, as they are, as 64 hexadecimal digits or in base64; forebay spool keygen makes
	// one. It must not be readable for everybody (mode 0640 or less), and belongs on another disk than the spool.
	File string `yaml:"file"`
}

// StreamConfig is one named log.
type StreamConfig struct {
	// Name of the stream: lower-case letters, digits, - and _, at most 64.
	Name string `yaml:"name"`

	// MQTT topic filters of the records that the stream takes. A stream without filters takes only what the gateway itself
	// puts there, such as dead letters; default has none, it takes what no other takes.
	Filters []string `yaml:"filters"`

	// Number of partitions, 1 to 1024. More partitions let more lanes work at the same time; order holds within one.
	Partitions int `yaml:"partitions"`

	// What decides a record's partition, and so what keeps its order: client_id or topic.
	PartitionBy string `yaml:"partition_by"`

	// How long delivered records are kept, to be read again; a long time such as 3650d keeps them while there is
	// room. Records that a route still has to deliver stay.
	Retention unit.Duration `yaml:"retention"`

	// Largest size of the stream on disk; 0 is spool.max_size.
	MaxSize unit.Bytes `yaml:"max_size"`

	// Time to live of records whose publisher gave no Message Expiry Interval; 0 is for ever.
	TTL unit.Duration `yaml:"ttl"`

	// Longest time to live: a longer Message Expiry Interval is cut to it; 0 is no limit.
	MaxTTL unit.Duration `yaml:"max_ttl"`

	// What happens to new records when there is no room: block (hold the acknowledgement and stop reading), reject
	// (reason code 0x97), drop_oldest (make room by removing records that are not delivered yet) or drop_new (acknowledge
	// and drop). Drops are counted.
	WhenFull FullPolicy `yaml:"when_full"`

	// When a publish of QoS 1 or 2 is acknowledged: local (it is durable here) or upstream (it is durable here, and Kafka has it on
	// the routes that must have it). With upstream a publisher waits for Kafka, and its later messages to any stream with it, since
	// acknowledgements leave in order. A message that no such route takes is acknowledged when it is durable here.
	Ack AckMode `yaml:"ack"`

	// Routes that must have a message, with ack: upstream. Default: all that read the stream.
	AckRoutes []string `yaml:"ack_routes"`

	// Longest time that an acknowledgement waits for Kafka. The default outlasts a broker that dies: its cluster notices after 9 s
	// (broker.session.timeout.ms) and then elects. Once a way has been closed for that long, nobody waits for it any more.
	AckTimeout unit.Duration `yaml:"ack_timeout"`

	// What a publisher is told when the time is over: refuse (reason code 0x97; an MQTT 3.1.1 client, which cannot be told, loses
	// its connection), disconnect (it sends the message again, which then comes twice with QoS 1), or accept (success: the message is
	// durable here). In each case the message stays in the spool and is sent later. With refuse and disconnect a message is not even
	// stored while the route is paused, or for ack_timeout its upstream has not answered or the route has read no further, as more is on its
	// way than it may have.
	AckFallback string `yaml:"ack_fallback"`
}

// AckMode says when a publisher is acknowledged. The spool itself only keeps it.
type AckMode string

// The modes, and what becomes of a publisher that waits in vain.
const (
	AckLocal    AckMode = "local"
	AckUpstream AckMode = "upstream"

	AckAccept     = "accept"
	AckRefuse     = "refuse"
	AckDisconnect = "disconnect"
)

// SyncMode says when a record counts as durable.
type SyncMode string

// The sync modes.
const (
	SyncAlways   SyncMode = "sync"
	SyncInterval SyncMode = "interval"
)

// FullPolicy says what happens to new records when there is no room.
type FullPolicy string

// The policies.
const (
	FullBlock      FullPolicy = "block"
	FullReject     FullPolicy = "reject"
	FullDropOldest FullPolicy = "drop_oldest"
	FullDropNew    FullPolicy = "drop_new"
)

// What decides a record's partition.
const (
	PartitionByClientID = "client_id"
	PartitionByTopic    = "topic"
)

// DefaultConfig is the configuration of an empty file, Dir excepted.
func DefaultConfig() Config {
	return Config{
		MaxSize:        10 << 30,
		MinFree:        256 << 20,
		Sync:           SyncAlways,
		SyncInterval:   unit.Duration(50 * time.Millisecond),
		QueueSize:      16 << 20,
		TailSize:       64 << 20,
		CommitInterval: unit.Duration(100 * time.Millisecond),
		Journal:        JournalConfig{FileSize: 64 << 20, Files: 3},
		Segment:        SegmentConfig{MaxSize: 128 << 20, MaxAge: unit.Duration(time.Hour), Codec: "zstd"},
		Quarantine:     QuarantineConfig{MaxSize: 1 << 30},
	}
}

// DefaultStreamConfig is what a stream has when the file says nothing about it.
func DefaultStreamConfig(name string) StreamConfig {
	return StreamConfig{
		Name:        name,
		Partitions:  8,
		PartitionBy: PartitionByClientID,
		Retention:   unit.Duration(72 * time.Hour),
		WhenFull:    FullBlock,
		Ack:         AckLocal,
		AckRoutes:   []string{},
		AckTimeout:  unit.Duration(15 * time.Second),
		AckFallback: AckRefuse,
	}
}

// WithDefaults fills what a stream's entry left out. A retention of 0 cannot be told from one that was left out, so that
// "for ever" is written as a long time.
func (c StreamConfig) WithDefaults() StreamConfig {
	d := DefaultStreamConfig(c.Name)
	if c.Partitions == 0 {
		c.Partitions = d.Partitions
	}
	if c.PartitionBy == "" {
		c.PartitionBy = d.PartitionBy
	}
	if c.Retention == 0 {
		c.Retention = d.Retention
	}
	if c.WhenFull == "" {
		c.WhenFull = d.WhenFull
	}
	if c.Ack == "" {
		c.Ack = d.Ack
	}
	if c.AckRoutes == nil {
		c.AckRoutes = d.AckRoutes
	}
	if c.AckTimeout == 0 {
		c.AckTimeout = d.AckTimeout
	}
	if c.AckFallback == "" {
		c.AckFallback = d.AckFallback
	}
	return c
}

// Validate reports everything that is wrong, each with the key that has to change.
func (c Config) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	c.validateSizes(fault)
	c.Encryption.validate(fault)
	seen := make(map[string]int)
	for i, sc := range c.Streams {
		key := fmt.Sprintf("streams[%d]", i)
		if j, ok := seen[sc.Name]; ok {
			fault("%s.name: %q is already the name of streams[%d]", key, sc.Name, j)
		}
		seen[sc.Name] = i
		sc.WithDefaults().validate(func(format string, args ...any) { fault(key+format, args...) })
		if sc.MaxSize > 0 && sc.MaxSize < 2*c.Segment.MaxSize {
			fault("%s.max_size: %v is less than two segments (segment.max_size is %v): space comes back by whole segments",
				key, sc.MaxSize, c.Segment.MaxSize)
		}
	}
	if len(c.Streams) > maxStreams {
		fault("streams: %d streams, at most %d", len(c.Streams), maxStreams)
	}
	return errors.Join(errs...)
}

const (
	maxStreams    = 256  // each has an active segment with its own map of memory and its own commit
	maxPartitions = 1024 // fits the segment's u16 with room, and a cursor's positions stay below 10 KiB
)

func (c Config) validateSizes(fault func(string, ...any)) {
	if c.Sync != SyncAlways && c.Sync != SyncInterval {
		fault("sync: %q is neither sync nor interval", c.Sync)
	}
	if c.Sync == SyncInterval && (c.SyncInterval.Std() < time.Millisecond || c.SyncInterval.Std() > time.Minute) {
		fault("sync_interval: %v is not between 1ms and 1m", c.SyncInterval)
	}
	if d := c.CommitInterval.Std(); d < time.Millisecond || d > time.Minute {
		fault("commit_interval: %v is not between 1ms and 1m", c.CommitInterval)
	}
	if c.QueueSize < 64<<10 {
		fault("queue_size: %v is less than 64KiB", c.QueueSize)
	}
	if c.TailSize < c.QueueSize {
		fault("tail_size: %v is less than queue_size (%v)", c.TailSize, c.QueueSize)
	}
	if c.Journal.FileSize < 1<<20 || c.Journal.FileSize > 1<<30 {
		fault("journal.file_size: %v is not between 1MiB and 1GiB", c.Journal.FileSize)
	}
	if c.Journal.Files < 2 || c.Journal.Files > 64 {
		fault("journal.files: %d is not between 2 and 64", c.Journal.Files)
	}
	if c.Segment.MaxSize < 1<<20 || c.Segment.MaxSize > 1<<30 {
		fault("segment.max_size: %v is not between 1MiB and 1GiB", c.Segment.MaxSize)
	}
	if d := c.Segment.MaxAge.Std(); d < time.Second {
		fault("segment.max_age: %v is less than 1s", c.Segment.MaxAge)
	}
	switch c.Segment.Codec {
	case "zstd", "s2", "none":
	default:
		fault("segment.codec: %q is none of zstd, s2, none", c.Segment.Codec)
	}
	if c.Quarantine.MaxSize < 0 {
		fault("quarantine.max_size: %v is negative", c.Quarantine.MaxSize)
	}
	if c.Quarantine.MaxAge < 0 {
		fault("quarantine.max_age: %v is negative", c.Quarantine.MaxAge)
	}
	if c.MinFree < 0 {
		fault("min_free: %v is negative", c.MinFree)
	}
	journal := c.Journal.FileSize * unit.Bytes(c.Journal.Files)
	if need := journal + 4*c.Segment.MaxSize; c.MaxSize < need {
		fault("max_size: %v is less than the journal and four segments (%d x %v + 4 x %v = %v): raise it, or lower journal.file_size, "+
			"journal.files or segment.max_size", c.MaxSize, c.Journal.Files, c.Journal.FileSize, c.Segment.MaxSize, need)
	}
}

func (c EncryptionConfig) validate(fault func(string, ...any)) {
	known := make(map[int]int)
	for i, k := range c.Keys {
		if k.ID < 1 || k.ID > 65535 {
			fault("encryption.keys[%d].id: %d is not between 1 and 65535", i, k.ID)
		}
		if j, twice := known[k.ID]; twice {
			fault("encryption.keys[%d].id: %d is already the ID of keys[%d]", i, k.ID, j)
		}
		known[k.ID] = i
		if k.File == "" {
			fault("encryption.keys[%d].file: is empty: want the file of the key", i)
		}
	}
	if _, ok := known[c.Active]; c.Active != 0 && !ok {
		fault("encryption.active: there is no key %d below encryption.keys", c.Active)
	}
}

func (c StreamConfig) validate(fault func(string, ...any)) {
	if !validStreamName(c.Name) {
		fault(".name: %q is not 1 to 64 of a-z, 0-9, - and _, starting with a letter or digit", c.Name)
	}
	if c.Name == DefaultStream && len(c.Filters) > 0 {
		fault(".filters: stream %s takes what no other takes and has no filters", DefaultStream)
	}
	for i, f := range c.Filters {
		if err := CheckFilter(f); err != nil {
			fault(".filters[%d]: %w", i, err)
		}
	}
	if c.Partitions < 1 || c.Partitions > maxPartitions {
		fault(".partitions: %d is not between 1 and %d", c.Partitions, maxPartitions)
	}
	if c.PartitionBy != PartitionByClientID && c.PartitionBy != PartitionByTopic {
		fault(".partition_by: %q is neither client_id nor topic", c.PartitionBy)
	}
	for _, d := range []struct {
		key string
		v   unit.Duration
	}{{"retention", c.Retention}, {"ttl", c.TTL}, {"max_ttl", c.MaxTTL}} {
		if d.v < 0 {
			fault(".%s: %v is negative", d.key, d.v)
		}
	}
	if c.MaxTTL > 0 && c.TTL > c.MaxTTL {
		fault(".ttl: %v is more than max_ttl (%v)", c.TTL, c.MaxTTL)
	}
	if c.MaxSize < 0 {
		fault(".max_size: %v is negative", c.MaxSize)
	}
	switch c.WhenFull {
	case FullBlock, FullReject, FullDropOldest, FullDropNew:
	default:
		fault(".when_full: %q is none of block, reject, drop_oldest, drop_new", c.WhenFull)
	}
	c.validateAck(fault)
}

func (c StreamConfig) validateAck(fault func(string, ...any)) {
	switch c.Ack {
	case AckUpstream:
	case AckLocal:
		if len(c.AckRoutes) > 0 {
			fault(".ack_routes: routes of a stream whose ack is local: set ack: upstream, or leave ack_routes out")
		}
	default:
		fault(".ack: %q is neither local nor upstream", c.Ack)
	}
	local, usual := c.Ack == AckLocal, DefaultStreamConfig(c.Name)
	switch d := c.AckTimeout.Std(); {
	case d < 100*time.Millisecond || d > 10*time.Minute:
		fault(".ack_timeout: %v is not between 100ms and 10m", c.AckTimeout)
	case local && c.AckTimeout != usual.AckTimeout:
		fault(".ack_timeout: nobody waits in a stream whose ack is local: set ack: upstream, or leave ack_timeout out")
	}
	switch c.AckFallback {
	case AckAccept, AckRefuse, AckDisconnect:
		if local && c.AckFallback != usual.AckFallback {
			fault(".ack_fallback: nobody waits in a stream whose ack is local: set ack: upstream, or leave ack_fallback out")
		}
	default:
		fault(".ack_fallback: %q is none of refuse, disconnect, accept", c.AckFallback)
	}
}

func validStreamName(name string) bool {
	if name == "" || len(name) > 64 {
		return false
	}
	for i, r := range name {
		alnum := r >= 'a' && r <= 'z' || r >= '0' && r <= '9'
		if !alnum && (i == 0 || r != '-' && r != '_') {
			return false
		}
	}
	return true
}
