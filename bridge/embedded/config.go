package embedded

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

// Config is what an operator sets.
type Config struct {
	// Start a Kafka broker inside the gateway. For demo and tests only, never for production: one node, no replica, its data
	// goes after retention.
	Enabled bool `yaml:"enabled"`

	// Address that it listens on; it has to be on 127.0.0.1. Port 0 takes a free one.
	Address string `yaml:"address"`

	// Directory of its data. One process at a time. Default: embedded-kafka below gateway.data_dir.
	Dir string `yaml:"dir"`

	// Partitions of topics that are made by being used. After a kill -9 those that no route writes to may be gone.
	Partitions int `yaml:"partitions"`

	// How long its records are kept.
	Retention unit.Duration `yaml:"retention"`

	// Largest size of one of its partitions.
	MaxPartitionSize unit.Bytes `yaml:"max_partition_size"`
}

// DefaultConfig is the configuration of an empty file: not enabled.
func DefaultConfig() Config {
	return Config{
		Address:          "127.0.0.1:9092",
		Partitions:       6,
		Retention:        unit.Duration(24 * time.Hour),
		MaxPartitionSize: 64 << 20,
	}
}

// Validate reports everything that is wrong, each with the key that has to change.
func (c Config) Validate() error {
	if !c.Enabled {
		return nil
	}
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, err := c.port(); err != nil {
		fault("address: %w", err)
	}
	if c.Partitions < 1 || c.Partitions > 1000 {
		fault("partitions: %d is not between 1 and 1000", c.Partitions)
	}
	if c.Retention.Std() < time.Minute {
		fault("retention: %v is less than 1m", c.Retention)
	}
	if c.MaxPartitionSize < 1<<20 {
		fault("max_partition_size: %v is less than 1MiB", c.MaxPartitionSize)
	}
	return errors.Join(errs...)
}

func (c Config) port() (int, error) {
	host, port, err := net.SplitHostPort(c.Address)
	if err != nil {
		return 0, fmt.Errorf("%q is not host:port, such as 127.0.0.1:9092", c.Address)
	}
	if host != "127.0.0.1" && host != "localhost" {
		return 0, fmt.Errorf("%q is not on 127.0.0.1: the embedded broker has no access control and serves this machine only", c.Address)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q has the port %q, want 0 to 65535", c.Address, port)
	}
	return int(n), nil
}
