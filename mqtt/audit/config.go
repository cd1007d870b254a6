package audit

import (
	"errors"
	"fmt"
)

// What stands in the log.
const (
	LogImportant = "important"
	LogAll       = "all"
	LogNone      = "none"
)

// Config is what an operator sets.
type Config struct {
	// Which events stand in the log, as lines with the message "audit": important (all but client.connected and
	// client.disconnected), all or none.
	Log string `yaml:"log"`

	// Stream of the spool that gets every event too, a JSON object on the topic $forebay/audit/{event}. It is made when
	// spool.streams does not list it, with two segments (spool.segment.max_size) at most, the oldest
	// dropped, and 30 days of retention. Empty is none.
	Stream string `yaml:"stream"`

	// Events of one name in a second; as many of ten seconds may come at once, a quarter of them from one address. What is
	// above it is counted only.
	Rate int `yaml:"rate"`
}

// DefaultConfig is the configuration of an empty file.
func DefaultConfig() Config { return Config{Log: LogImportant, Rate: 20} }

const maxRate = 10_000

// Validate reports everything that is wrong, each with the key that has to change, below mqtt.
func (c Config) Validate() error {
	var errs []error
	switch c.Log {
	case LogImportant, LogAll, LogNone:
	default:
		errs = append(errs, fmt.Errorf("audit.log: %q is not %s, %s or %s", c.Log, LogImportant, LogAll, LogNone))
	}
	if c.Rate < 1 || c.Rate > maxRate {
		errs = append(errs, fmt.Errorf("audit.rate: %d is not between 1 and %d", c.Rate, maxRate))
	}
	return errors.Join(errs...)
}
