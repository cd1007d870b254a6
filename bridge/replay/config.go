package replay

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

// Config is what an operator sets.
type Config struct {
	// Most replays that run at once; one more is refused. Each has connections of its own to its upstream.
	MaxJobs int `yaml:"max_jobs"`

	// Records a second of a replay whose command gives no --rate; 0 is no limit. Live traffic shares processors, disk and link with it.
	RecordsPerSecond int `yaml:"records_per_second"`

	// Stream of the spool that takes what forebay replay --to-mqtt publishes, such as replay: local subscribers get it from there, with
	// its QoS and also when they are away, and no route does unless one reads that stream. It is made with one partition and a
	// retention of 24h unless spool.streams lists it, then without filters. Empty: --to-mqtt is refused.
	Stream string `yaml:"stream"`

	// How long a replay that has ended is listed.
	Keep unit.Duration `yaml:"keep"`
}

// DefaultConfig is what an empty section means.
func DefaultConfig() Config {
	return Config{MaxJobs: 2, RecordsPerSecond: 5000, Keep: 7 * unit.Day}
}

var streamName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// Validate reports everything that is wrong, each with the key that has to change.
func (c Config) Validate() error {
	var errs []error
	if c.MaxJobs < 1 || c.MaxJobs > maxJobs {
		errs = append(errs, fmt.Errorf("max_jobs: %d is not between 1 and %d", c.MaxJobs, maxJobs))
	}
	if c.RecordsPerSecond < 0 {
		errs = append(errs, fmt.Errorf("records_per_second: %d is negative; 0 is no limit", c.RecordsPerSecond))
	}
	if c.Stream != "" && !streamName.MatchString(c.Stream) {
		errs = append(errs, fmt.Errorf("stream: %q is not 1 to 64 of a-z, 0-9, - and _, starting with a letter or digit", c.Stream))
	}
	if c.Keep < unit.Minute {
		errs = append(errs, fmt.Errorf("keep: %v is less than 1m", c.Keep))
	}
	return errors.Join(errs...)
}

const maxJobs = 32 // each has up to partitionsAtOnce × 3 pages in memory, and a client of Kafka
