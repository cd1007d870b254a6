package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/forebay-gateway/forebay/bridge"
	"github.com/forebay-gateway/forebay/bridge/replay"
	"github.com/forebay-gateway/forebay/gateway/admin"
	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering"
)

//go:generate go run ./internal/gendoc ../..

// Config is everything an operator sets: one section for each part.
type Config struct {
	// The gateway as a whole.
	Gateway Gateway `yaml:"gateway"`

	// What the gateway writes to standard error.
	Log Log `yaml:"log"`

	// Health, readiness and metrics.
	Admin admin.Config `yaml:"admin"`

	// The front that devices and local subscribers connect to.
	MQTT mqtt.Config `yaml:"mqtt"`

	// The durable log between devices and everything that reads them.
	Spool spool.Config `yaml:"spool"`

	// The way to Kafka.
	Bridge bridge.Config `yaml:"bridge"`

	// Sealed segments in object storage, off by default.
	Tiering tiering.Config `yaml:"tiering"`

	// Sending a span of the past again: forebay replay.
	Replay replay.Config `yaml:"replay"`
}

// Gateway is the gateway as a whole.
type Gateway struct {
	// Name of this gateway in record headers, client IDs towards Kafka and logs: letters, digits, dot, underscore and
	// hyphen, at most 64. No two gateways that write to one Kafka cluster may share it. When it is left out, a random
	// one is made at the first start and kept in the file gateway_id of data_dir.
	ID string `yaml:"id"`

	// Directory of everything that must survive a restart. It is made when it is missing; a relative one is below the
	// directory that the gateway is started in.
	DataDir string `yaml:"data_dir"`

	// Longest time that a stop may take, from the signal to the end of the process: devices are told, routes deliver
	// what is in flight, the spool closes. What is not delivered then is delivered after the next start.
	StopTimeout unit.Duration `yaml:"stop_timeout"`
}

// Log is what the gateway writes to standard error.
type Log struct {
	// Least important level that is written: debug (every message), info (start, stop, roll), warn (degraded and
	// recovering) or error (someone must act).
	Level Level `yaml:"level"`

	// Format of a line: text (key=value) or json.
	Format Format `yaml:"format"`
}

// DefaultConfig is the configuration of an empty file.
func DefaultConfig() Config {
	return Config{
		Gateway: Gateway{DataDir: "/var/lib/forebay", StopTimeout: 30 * unit.Second},
		Log:     Log{Level: LevelInfo, Format: FormatText},
		Admin:   admin.DefaultConfig(),
		MQTT:    mqtt.DefaultConfig(),
		Spool:   spool.DefaultConfig(),
		Bridge:  bridge.DefaultConfig(),
		Tiering: tiering.DefaultConfig(),
		Replay:  replay.DefaultConfig(),
	}
}

// Validate reports everything that is wrong in any part, and where parts do not fit each other. Each error starts with the
// path of the key that has to change.
func (c Config) Validate() error {
	return errors.Join(
		below("gateway", c.Gateway.validate()),
		below("admin", c.Admin.Validate()),
		below("mqtt", c.MQTT.Validate()),
		below("spool", c.Spool.Validate()),
		below("bridge", c.Bridge.Validate()),
		below("tiering", c.Tiering.Validate()),
		below("replay", c.Replay.Validate()),
		c.validateStreams(),
		c.validateAcks(),
		c.validateAddresses(),
		c.validatePaths(),
	)
}

// validateStreams checks what the bridge says about streams: it does not know the spool's configuration.
func (c Config) validateStreams() error {
	names := []string{spool.DefaultStream}
	listed := map[string]spool.StreamConfig{}
	for i, st := range c.Spool.Streams {
		if st.Name != spool.DefaultStream {
			names = append(names, st.Name)
		}
		listed[st.Name] = c.Spool.Streams[i]
	}
	dead := c.Bridge.DeadLetterStream
	if _, ok := listed[dead]; !ok && c.keepsDeadLetters() {
		names = append(names, dead)
	}
	audit := c.MQTT.Audit.Stream
	if _, ok := listed[audit]; !ok && audit != "" && audit != spool.DefaultStream {
		names = append(names, audit)
	}
	if _, ok := listed[c.Replay.Stream]; !ok && c.Replay.Stream != "" && c.Replay.Stream != spool.DefaultStream {
		names = append(names, c.Replay.Stream)
	}
	var errs []error
	known := func(key, name string) bool {
		if slices.Contains(names, name) {
			return true
		}
		problem := fmt.Sprintf("there is no stream %q below spool.streams; there are %s", name, strings.Join(names, ", "))
		if near := Nearest(name, names); near != "" {
			problem = fmt.Sprintf("there is no stream %q below spool.streams (did you mean %s?)", name, near)
		}
		errs = append(errs, fmt.Errorf("%s: %s", key, problem))
		return false
	}
	for i, st := range c.Tiering.Streams {
		if st.Name != "" {
			known(fmt.Sprintf("tiering.streams[%d].name", i), st.Name)
		}
	}
	for i, r := range c.Bridge.Routes {
		if r.Stream != "" {
			known(fmt.Sprintf("bridge.routes[%d].stream", i), r.Stream)
		}
	}
	if st, ok := listed[dead]; ok && c.keepsDeadLetters() {
		if len(st.Filters) > 0 {
			errs = append(errs, fmt.Errorf("bridge.dead_letter_stream: stream %q takes records of devices; want one without filters", dead))
		}
		if st.WhenFull == spool.FullDropNew || st.WhenFull == spool.FullDropOldest {
			errs = append(errs, fmt.Errorf("bridge.dead_letter_stream: stream %q drops records when it is full (when_full); a dead letter must not be lost", dead))
		}
	}
	if st, ok := listed[audit]; audit == spool.DefaultStream || ok && len(st.Filters) > 0 {
		errs = append(errs, fmt.Errorf("mqtt.audit.stream: stream %q takes records of devices; want one without filters", audit))
	}
	if audit != "" && !streamName.MatchString(audit) {
		errs = append(errs, fmt.Errorf("mqtt.audit.stream: %q is not 1 to 64 of a-z, 0-9, - and _, starting with a letter or digit", audit))
	}
	again := c.Replay.Stream
	if st, ok := listed[again]; ok && (len(st.Filters) > 0 || st.WhenFull == spool.FullDropNew) || again == spool.DefaultStream {
		errs = append(errs, fmt.Errorf("replay.stream: stream %q takes records of devices, or drops records when it is full (when_full: drop_new); want one without filters that does not", again))
	}
	if again != "" && (again == dead && c.keepsDeadLetters() || again == audit) {
		errs = append(errs, fmt.Errorf("replay.stream: %q is the stream of dead letters or of audit events already", again))
	}
	if audit != "" && audit == dead && c.keepsDeadLetters() {
		errs = append(errs, fmt.Errorf("mqtt.audit.stream: %q is the stream of dead letters (bridge.dead_letter_stream)", audit))
	}
	return errors.Join(errs...)
}

// validateAcks reports streams whose publishers would wait for a route that there is not.
func (c Config) validateAcks() error {
	var errs []error
	for i, st := range c.Spool.Streams {
		if st.Ack != spool.AckUpstream {
			continue
		}
		key := fmt.Sprintf("spool.streams[%d]", i)
		if st.Name != spool.DefaultStream && len(st.Filters) == 0 {
			errs = append(errs, fmt.Errorf("%s.ack: stream %q has no filters, so that nobody publishes to it: leave ack out", key, st.Name))
			continue
		}
		var readers []string
		for _, r := range c.Bridge.Routes {
			if cmp.Or(r.Stream, spool.DefaultStream) == st.Name {
				readers = append(readers, r.Name)
			}
		}
		if len(readers) == 0 {
			errs = append(errs, fmt.Errorf("%s.ack: no route reads stream %q: add one below bridge.routes, or set ack: local", key, st.Name))
			continue
		}
		for j, name := range st.AckRoutes {
			if slices.Contains(readers, name) {
				continue
			}
			problem := fmt.Sprintf("no route %q reads stream %q; there are %s", name, st.Name, strings.Join(readers, ", "))
			if near := Nearest(name, readers); near != "" {
				problem = fmt.Sprintf("no route %q reads stream %q (did you mean %s?)", name, st.Name, near)
			}
			errs = append(errs, fmt.Errorf("%s.ack_routes[%d]: %s", key, j, problem))
		}
	}
	return errors.Join(errs...)
}

// validateAddresses finds two listeners with one address, which would be told only after the first has started.
func (c Config) validateAddresses() error {
	type listener struct{ key, address string }
	all := []listener{{"admin.address", c.Admin.Address}}
	for i, l := range c.MQTT.Listeners {
		all = append(all, listener{fmt.Sprintf("mqtt.listeners[%d].address", i), l.Address})
	}
	if c.Bridge.Embedded.Enabled {
		all = append(all, listener{"bridge.embedded.address", c.Bridge.Embedded.Address})
	}
	var errs []error
	seen := map[string]string{}
	for _, l := range all {
		if _, port, err := net.SplitHostPort(l.address); err == nil && strings.HasPrefix(l.key, "mqtt.") { // the others have said so
			if _, err := strconv.ParseUint(port, 10, 16); err != nil {
				errs = append(errs, fmt.Errorf("%s: %q is not a port: want 0 to 65535", l.key, port))
				continue
			}
		}
		if strings.HasSuffix(l.address, ":0") {
			continue // each takes a free port of its own
		}
		if other, twice := seen[l.address]; twice {
			errs = append(errs, fmt.Errorf("%s: %s is already the address of %s", l.key, l.address, other))
			continue
		}
		seen[l.address] = l.key
	}
	return errors.Join(errs...)
}

// validatePaths refuses what only a shell understands: it would make a directory with that name.
func (c Config) validatePaths() error {
	var errs []error
	for _, p := range []struct{ key, path string }{
		{"gateway.data_dir", c.Gateway.DataDir},
		{"spool.dir", c.Spool.Dir},
		{"bridge.embedded.dir", c.Bridge.Embedded.Dir},
		{"tiering.cache_dir", c.Tiering.CacheDir},
		{"tiering.credentials_file", c.Tiering.CredentialsFile},
	} {
		if p.path == "~" || strings.HasPrefix(p.path, "~/") {
			errs = append(errs, fmt.Errorf("%s: ~ is not expanded: write out the path instead of %s", p.key, p.path))
		}
	}
	return errors.Join(errs...)
}

// keepsDeadLetters reports whether there is a dead-letter stream.
func (c Config) keepsDeadLetters() bool {
	name := c.Bridge.DeadLetterStream
	return len(c.Bridge.Routes)+len(c.Bridge.Downlinks) > 0 && name != "" && name != bridge.NoDeadLetters
}

// Resolved is c with everything filled in that follows from something else: the directories below gateway.data_dir, and the
// streams of dead letters, of audit events and of replays. Twice is fine.
func (c Config) Resolved() Config {
	name := c.Bridge.DeadLetterStream
	if c.keepsDeadLetters() && !slices.ContainsFunc(c.Spool.Streams, func(s spool.StreamConfig) bool { return s.Name == name }) {
		dead := spool.DefaultStreamConfig(name)
		dead.Partitions, dead.Retention = 1, deadLetterRetention
		c.Spool.Streams = append(slices.Clip(c.Spool.Streams), dead)
	}
	audit := c.MQTT.Audit.Stream
	if audit != "" && !slices.ContainsFunc(c.Spool.Streams, func(s spool.StreamConfig) bool { return s.Name == audit }) {
		own := spool.DefaultStreamConfig(audit)
		own.Partitions, own.Retention, own.MaxSize, own.WhenFull = 1, auditRetention, 2*c.Spool.Segment.MaxSize, spool.FullDropOldest
		c.Spool.Streams = append(slices.Clip(c.Spool.Streams), own)
	}
	again := c.Replay.Stream
	if again != "" && !slices.ContainsFunc(c.Spool.Streams, func(s spool.StreamConfig) bool { return s.Name == again }) {
		own := spool.DefaultStreamConfig(again)
		own.Partitions, own.Retention, own.MaxSize = 1, replayRetention, max(c.Spool.MaxSize/10, 2*c.Spool.Segment.MaxSize)
		c.Spool.Streams = append(slices.Clip(c.Spool.Streams), own)
	}
	c.Spool.Dir = cmp.Or(c.Spool.Dir, filepath.Join(c.Gateway.DataDir, "spool"))
	c.Bridge.Embedded.Dir = cmp.Or(c.Bridge.Embedded.Dir, filepath.Join(c.Gateway.DataDir, "embedded-kafka"))
	c.Tiering.CacheDir = cmp.Or(c.Tiering.CacheDir, filepath.Join(c.Gateway.DataDir, "tier-cache"))
	return c
}

// deadLetterRetention is for dead letters that have been dealt with; the others stay.
const deadLetterRetention = 30 * 24 * unit.Hour

// replayRetention is for what was published again, for those who are away; it may take a tenth of the spool, so that no replay
// takes the room of devices.
const replayRetention = 24 * unit.Hour

// auditRetention is for audit events when spool.streams does not say otherwise.
const auditRetention = 30 * 24 * unit.Hour

var streamName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

var gatewayID = regexp.MustCompile(`^[A-Za-z0-9._-]{0,64}$`)

func (g Gateway) validate() error {
	var errs []error
	if !gatewayID.MatchString(g.ID) {
		errs = append(errs, fmt.Errorf("id: %q is not at most 64 letters, digits, dots, underscores and hyphens", g.ID))
	}
	if g.DataDir == "" {
		errs = append(errs, errors.New("data_dir: is empty: want a directory"))
	}
	if g.StopTimeout < unit.Second || g.StopTimeout > unit.Hour {
		errs = append(errs, fmt.Errorf("stop_timeout: %v is not between 1s and 1h", g.StopTimeout))
	}
	return errors.Join(errs...)
}

// below puts the name of a part before the key path of each of its errors.
func below(part string, err error) error {
	var errs []error
	for _, e := range each(err) {
		errs = append(errs, fmt.Errorf("%s.%w", part, e))
	}
	return errors.Join(errs...)
}

// each takes joined errors apart.
func each(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, each(e)...)
	}
	return out
}
