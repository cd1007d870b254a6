package tiering

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// Config is what an operator sets.
type Config struct {
	// Where segments are stored: file:///path, s3://bucket/prefix?region=..., gs://bucket/prefix or azblob://container/prefix. Without
	// it nothing is stored anywhere. One gateway has a prefix for itself: docs/TIERING.md.
	URL string `yaml:"url"`

	// File with the store's credentials, instead of what the cloud's tools usually find (environment, files in the home directory,
	// the identity of the machine). It is read again when it changes. docs/TIERING.md has the format for each store.
	CredentialsFile string `yaml:"credentials_file"`

	// What an upload has to pass before the local copy may go: content (read back, and its SHA-256 compared) or size (the store
	// says how large it is; half of the traffic).
	Verify Verify `yaml:"verify"`

	// Size of the objects that a segment is stored in. An upload that breaks off goes on with the first part that is missing. A
	// directory takes a segment as one file.
	PartSize unit.Bytes `yaml:"part_size"`

	// Most bytes a second to and from the store, reading back included; 0 is no limit.
	Bandwidth unit.Rate `yaml:"bandwidth"`

	// Times of the day, in the time zone of the machine, in which nothing is uploaded: 07:30-18:00, or 22:00-06:00 over midnight.
	// Reading is not held up.
	Pause []string `yaml:"pause"`

	// Directory of segments that were fetched to be read. Default: tier-cache below gateway.data_dir.
	CacheDir string `yaml:"cache_dir"`

	// Largest size of cache_dir. The segments that are read just now may take it over that.
	CacheSize unit.Bytes `yaml:"cache_size"`

	// What one GB (10^9 bytes) costs for one month in the store, in any currency, for the cost view; 0 leaves costs out.
	PricePerGBMonth float64 `yaml:"price_per_gb_month"`

	// Streams that are stored.
	Streams []StreamConfig `yaml:"streams"`
}

// StreamConfig is how one stream is stored.
type StreamConfig struct {
	// Name of the stream.
	Name string `yaml:"name"`

	// A sealed segment is uploaded when it is this old, counted from its sealing. When upload_after, upload_count and
	// upload_watermark are all left out, it is uploaded at once; else when the first of those that are set says so.
	UploadAfter unit.Duration `yaml:"upload_after"`

	// All sealed segments are uploaded when there are this many that are not.
	UploadCount int `yaml:"upload_count"`

	// They are uploaded when the spool, or the stream, has this share of its max_size in use, in percent.
	UploadWatermark int `yaml:"upload_watermark"`

	// How long the local copy of a stored segment stays, counted from its sealing, when nobody needs it any more; 0 leaves that
	// to the spool's own retention and limits.
	KeepLocal unit.Duration `yaml:"keep_local"`

	// What the spool's size limits do with a segment that is not stored yet: keep (the stream is full, and its when_full decides) or
	// drop (it is removed and counted, readers see a gap not_stored). Retention by age waits in both cases.
	WhenNotStored WhenNotStored `yaml:"when_not_stored"`

	// How long segments stay in the store, counted from their sealing, by a time that no step of the clock changes; 0 is for ever.
	Retention unit.Duration `yaml:"retention"`

	// Largest size of the stream in the store; the oldest segments go first. 0 is no limit.
	MaxSize unit.Bytes `yaml:"max_size"`

	// Also write the records of each segment as a Parquet file, beside the segments. It is not encrypted.
	Parquet bool `yaml:"parquet"`
}

// Verify says how an upload is verified.
type Verify string

// The ways to verify.
const (
	VerifyContent Verify = "content"
	VerifySize    Verify = "size"
)

// WhenNotStored says what a size limit does.
type WhenNotStored string

// The policies.
const (
	NotStoredKeep WhenNotStored = "keep"
	NotStoredDrop WhenNotStored = "drop"
)

// DefaultConfig is the configuration of an empty file.
func DefaultConfig() Config {
	return Config{Verify: VerifyContent, PartSize: 16 << 20, CacheSize: 1 << 30}
}

// WithDefaults fills in what an entry leaves out.
func (c StreamConfig) WithDefaults() StreamConfig {
	if c.WhenNotStored == "" {
		c.WhenNotStored = NotStoredKeep
	}
	return c
}

// Enabled tells whether anything is stored.
func (c Config) Enabled() bool { return c.URL != "" }

// Validate reports everything that is wrong, each with the key that has to change.
func (c Config) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.URL != "" {
		if err := store.CheckURL(c.URL); err != nil {
			fault("url: %w", err)
		}
	}
	if c.URL == "" && len(c.Streams) > 0 {
		fault("url: is empty, and streams says what to store")
	}
	if c.Verify != VerifyContent && c.Verify != VerifySize {
		fault("verify: %q is neither content nor size", c.Verify)
	}
	if c.PartSize < 1<<20 || c.PartSize > 1<<30 {
		fault("part_size: %v is not between 1MiB and 1GiB", c.PartSize)
	}
	for i, p := range c.Pause {
		if _, err := parsePause(p); err != nil {
			fault("pause[%d]: %w", i, err)
		}
	}
	if c.CacheSize < 1<<20 {
		fault("cache_size: %v is less than 1MiB", c.CacheSize)
	}
	if c.PricePerGBMonth < 0 {
		fault("price_per_gb_month: %v is negative", c.PricePerGBMonth)
	}
	seen := map[string]int{}
	for i, st := range c.Streams {
		key := fmt.Sprintf("streams[%d]", i)
		if j, ok := seen[st.Name]; ok {
			fault("%s.name: %q is already the name of streams[%d]", key, st.Name, j)
		}
		seen[st.Name] = i
		st.WithDefaults().validate(func(format string, args ...any) { fault(key+format, args...) })
	}
	return errors.Join(errs...)
}

func (c StreamConfig) validate(fault func(string, ...any)) {
	if c.Name == "" {
		fault(".name: is empty: want the name of a stream")
	}
	if c.UploadCount < 0 {
		fault(".upload_count: %d is negative", c.UploadCount)
	}
	if c.UploadWatermark < 0 || c.UploadWatermark > 100 {
		fault(".upload_watermark: %d is not between 0 and 100 percent", c.UploadWatermark)
	}
	if c.WhenNotStored != NotStoredKeep && c.WhenNotStored != NotStoredDrop {
		fault(".when_not_stored: %q is neither keep nor drop", c.WhenNotStored)
	}
	if c.Retention > 0 && c.Retention < c.KeepLocal {
		fault(".retention: %v is shorter than keep_local (%v): the local copy would stay longer than the stored one", c.Retention, c.KeepLocal)
	}
	if c.MaxSize < 0 {
		fault(".max_size: %v is negative", c.MaxSize)
	}
}

// pause is a time of the day, in minutes; to may be before from, over midnight.
type pause struct{ from, to int }

func parsePause(s string) (pause, error) {
	from, to, ok := strings.Cut(s, "-")
	a, aerr := time.Parse("15:04", strings.TrimSpace(from))
	b, berr := time.Parse("15:04", strings.TrimSpace(to))
	if !ok || aerr != nil || berr != nil {
		return pause{}, fmt.Errorf("%q is not a time of the day such as 07:30-18:00", s)
	}
	p := pause{a.Hour()*60 + a.Minute(), b.Hour()*60 + b.Minute()}
	if p.from == p.to {
		return pause{}, fmt.Errorf("%q has no length", s)
	}
	return p, nil
}

func (p pause) has(t time.Time) bool {
	at := t.Hour()*60 + t.Minute()
	if p.from < p.to {
		return p.from <= at && at < p.to
	}
	return at >= p.from || at < p.to
}
