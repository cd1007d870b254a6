package fleet

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"
)

// Config says what a fleet does. The zero value of a field that has a default takes it.
type Config struct {
	Broker       string        // MQTT address: host:port, or tcp://host:port, ws://host:port/path; required
	Protocol     Protocol      // MQTT version of the devices; default MQTT5
	TopicPrefix  string        // first levels of the topic: PREFIX/RUN/DEVICE/telemetry; default "fleet"
	Devices      int           // how many devices publish; default 50
	Rate         float64       // messages a second of the whole fleet; 0 is as fast as the windows allow
	Profile      Profile       // how a device spreads its messages over time; default Steady
	Mix          Mix           // shares of QoS 0, 1 and 2; default all QoS 1
	Payload      int           // bytes of a payload; default 256
	Window       int           // messages of one device that may be outstanding; default 100
	Count        int           // messages of the whole fleet; 0 is no limit
	Duration     time.Duration // how long the fleet publishes; 0 is no limit
	Drain        time.Duration // how long to wait for what is still under way once publishing ended; default 30s
	Settle       time.Duration // how long nothing may arrive before the run is over, so that late doubles are seen; default 500ms
	KeepSessions bool          // leave the sessions on the broker when the run ends

	Subscribers   int   // how many subscribers read everything over MQTT
	SubscriberQoS uint8 // QoS of their subscription; the default 0 is meant, so set it

	Kafka      []string // seed brokers of the Kafka checker; none is no Kafka checker
	KafkaTopic []string // topics that it reads; required with Kafka

	// IDHeader names a Kafka header that identifies a record of the broker's log, such as forebay.id. With it a QoS 2
	// message that was taken into the log twice is told from a record that was sent to Kafka twice: the first is a fault.
	IDHeader string

	StrictKafka bool // a double on the Kafka side is a fault: for routes that promise exactly once
}

// Options are what the program wires.
type Options struct {
	Logger  *slog.Logger // nil discards
	Version string       // of the program, for the report
}

// Protocol is what devices speak. Subscribers always speak MQTT 5.
type Protocol string

// The protocols. With Both every second device speaks MQTT 3.1.1.
const (
	MQTT5   Protocol = "5"
	MQTT311 Protocol = "3.1.1"
	Both    Protocol = "both"
)

// withDefaults returns c with its unset fields filled.
func (c Config) withDefaults() Config {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&c.Devices, 50)
	def(&c.Payload, 256)
	def(&c.Window, 100)
	if c.Protocol == "" {
		c.Protocol = MQTT5
	}
	if c.TopicPrefix == "" {
		c.TopicPrefix = "fleet"
	}
	if c.Mix == (Mix{}) {
		c.Mix = Mix{0, 1, 0}
	}
	if c.Profile.Name == "" {
		c.Profile = Steady
	}
	if c.Drain == 0 {
		c.Drain = 30 * time.Second
	}
	if c.Settle == 0 {
		c.Settle = 500 * time.Millisecond
	}
	return c
}

// maxDevices and maxMessages keep the ledger's bitmaps small: four bits and two checkers a message are 10 MB at most.
const (
	maxDevices  = 100_000
	maxMessages = 50_000_000
)

// validate names everything that is wrong with c.
func (c Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, err := brokerURL(c.Broker); err != nil {
		bad("broker: %w", err)
	}
	if c.Protocol != MQTT5 && c.Protocol != MQTT311 && c.Protocol != Both {
		bad("protocol: %q is not 5, 3.1.1 or both", c.Protocol)
	}
	if c.Devices < 1 || c.Devices > maxDevices {
		bad("devices: %d is not in 1..%d", c.Devices, maxDevices)
	}
	if c.Rate < 0 {
		bad("rate: %v is negative", c.Rate)
	}
	if c.Profile.Bursty() && c.Rate == 0 {
		bad("profile: %s needs a rate", c.Profile.Name)
	}
	if c.Payload < minPayload || c.Payload > maxPayload {
		bad("payload: %d is not in %d..%d", c.Payload, minPayload, maxPayload)
	}
	if c.Window < 1 || c.Window > maxWindow {
		bad("window: %d is not in 1..%d", c.Window, maxWindow)
	}
	if c.Count < 0 || c.Count > maxMessages {
		bad("count: %d is not in 0..%d", c.Count, maxMessages)
	}
	if c.Duration < 0 || c.Drain < 0 || c.Settle < 0 {
		bad("duration, drain, settle: a time is negative")
	}
	if c.Subscribers < 0 || c.SubscriberQoS > 2 {
		bad("subscribers: %d with QoS %d", c.Subscribers, c.SubscriberQoS)
	}
	if len(c.Kafka) > 0 && len(c.KafkaTopic) == 0 {
		bad("kafka: no topic to read")
	}
	return errors.Join(errs...)
}

// brokerURL reads host:port or a URL; ws without a path gets the usual one.
func brokerURL(s string) (*url.URL, error) {
	if u, err := url.Parse(s); err == nil && u.Host != "" {
		switch u.Scheme {
		case "mqtt":
			u.Scheme = "tcp"
		case "tcp":
		case "ws":
			if u.Path == "" {
				u.Path = "/mqtt"
			}
		default:
			return nil, fmt.Errorf("%q: scheme %q is not tcp or ws", s, u.Scheme)
		}
		return u, nil
	}
	if s == "" {
		return nil, errors.New("no address")
	}
	u := &url.URL{Scheme: "tcp", Host: s}
	if u.Port() == "" {
		return nil, fmt.Errorf("%q is not host:port", s)
	}
	return u, nil
}
