package spool

import (
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

func TestDefaultConfigIsValid(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateNamesTheKey(t *testing.T) {
	f := func(want string, edit func(c *Config)) {
		t.Helper()
		c := DefaultConfig()
		c.Streams = []StreamConfig{{Name: "a", Filters: []string{"a/#"}}, {Name: DefaultStream}}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		edit(&c)
		err := c.Validate()
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s ...", err, want)
		}
	}
	f("sync: ", func(c *Config) { c.Sync = "never" })
	f("sync_interval: ", func(c *Config) { c.Sync, c.SyncInterval = SyncInterval, 0 })
	f("queue_size: ", func(c *Config) { c.QueueSize = 1 })
	f("tail_size: ", func(c *Config) { c.TailSize = c.QueueSize - 1 })
	f("journal.file_size: ", func(c *Config) { c.Journal.FileSize = 1000 })
	f("journal.files: ", func(c *Config) { c.Journal.Files = 1 })
	f("segment.codec: ", func(c *Config) { c.Segment.Codec = "gzip" })
	f("max_size: 64MiB is less than the journal and four segments (3 x 64MiB + 4 x 128MiB = 704MiB)", func(c *Config) { c.MaxSize = 64 << 20 })
	f("streams[1].name: ", func(c *Config) { c.Streams[1].Name = "a" })
	f("streams[0].name: ", func(c *Config) { c.Streams[0].Name = "A b" })
	f("streams[0].filters[0]: ", func(c *Config) { c.Streams[0].Filters = []string{"a/#/b"} })
	f("streams[1].filters: ", func(c *Config) { c.Streams[1].Filters = []string{"a"} })
	f("streams[0].partitions: ", func(c *Config) { c.Streams[0].Partitions = 5000 })
	f("streams[0].partition_by: ", func(c *Config) { c.Streams[0].PartitionBy = "user" })
	f("streams[0].when_full: ", func(c *Config) { c.Streams[0].WhenFull = "panic" })
	f("streams[0].max_size: ", func(c *Config) { c.Streams[0].MaxSize = 1 << 20 })
	f("streams[0].ttl: ", func(c *Config) {
		c.Streams[0].TTL, c.Streams[0].MaxTTL = unit.Duration(time.Hour), unit.Duration(time.Minute)
	})
}
