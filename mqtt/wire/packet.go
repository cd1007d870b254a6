package wire

import (
	"math"
	"time"
	"unicode/utf8"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/spool"
)

// The protocol levels that are served.
const (
	Version311 byte = 4
	Version5   byte = 5
)

// Packet is what Decoder.Read returns: *Connect, *Publish, *Ack, *Subscribe, *Unsubscribe, *Pingreq, *Disconnect or *Auth.
//
// A packet owns its memory: its strings and byte slices share one allocation that nobody else uses and that is never
// written again. Who keeps one of them for longer than the packet (a topic alias, a filter) clones it, or keeps it all.
type Packet interface {
	// Type is the control packet type of the standard, for example packets.Publish.
	Type() byte
}

// Connect is a CONNECT packet. What a property leaves out has the default of the standard; for MQTT 3.1.1 the fields of
// MQTT 5 hold what 3.1.1 means by its silence.
type Connect struct {
	Version  byte   // Version311 or Version5
	ClientID string // empty: to be assigned

	// CleanStart is Clean Start of MQTT 5 and CleanSession of 3.1.1.
	CleanStart bool
	KeepAlive  uint16 // seconds, 0 is none

	HasUserName bool
	HasPassword bool
	UserName    string
	Password    []byte
	Will        *Will // nil without a will

	SessionExpiry      uint32 // seconds, 1<<32-1 is never; 3.1.1: 0 with CleanSession, otherwise never
	ReceiveMaximum     uint16 // 1..65535
	MaxPacketSize      uint32 // 0 is no limit
	TopicAliasMaximum  uint16
	RequestResponse    bool // Request Response Information
	RequestProblemInfo bool // true unless the client turned it off

	HasAuthMethod bool
	AuthMethod    string
	AuthData      []byte // nil when absent
	User          []spool.UserProperty
}

// Will is the will of a CONNECT: a PUBLISH that waits.
type Will struct {
	Publish
	Delay uint32 // Will Delay Interval, seconds
}

// Publish is a PUBLISH packet, read from a client or to be sent to one.
type Publish struct {
	Topic      string // empty only when TopicAlias stands for it
	Payload    []byte
	Properties *spool.Properties // nil when there are none

	// SubscriptionIDs are sent, never received: MQTT 5, 3.3.4-6.
	SubscriptionIDs []uint32

	Expiry     uint32 // Message Expiry Interval, seconds; meaningful when HasExpiry
	TopicAlias uint16 // 0 is none
	PacketID   uint16 // 0 when QoS is 0
	QoS        byte
	HasExpiry  bool
	Dup        bool
	Retain     bool
}

// Ack is a PUBACK, PUBREC, PUBREL or PUBCOMP.
type Ack struct {
	Kind         byte // packets.Puback, packets.Pubrec, packets.Pubrel or packets.Pubcomp
	Reason       byte // always 0 in MQTT 3.1.1
	PacketID     uint16
	ReasonString string
}

// Subscribe is a SUBSCRIBE packet with at least one filter.
type Subscribe struct {
	PacketID       uint16
	SubscriptionID uint32 // 0 when absent
	Filters        []Filter
	User           []spool.UserProperty
}

// Filter is one topic filter of a SUBSCRIBE with its options.
type Filter struct {
	Filter string // as sent, with $share/{name}/ in front when Share is set
	Share  string // ShareName of a shared subscription, otherwise empty
	Topic  string // what topics are matched against: Filter without $share/{name}/

	QoS               byte
	RetainHandling    byte
	NoLocal           bool
	RetainAsPublished bool
}

// Unsubscribe is an UNSUBSCRIBE packet with at least one filter.
type Unsubscribe struct {
	PacketID uint16
	Filters  []string
	User     []spool.UserProperty
}

// Pingreq is a PINGREQ packet.
type Pingreq struct{}

// Disconnect is a DISCONNECT packet, read from a client or to be sent to one.
type Disconnect struct {
	Reason           byte
	HasSessionExpiry bool
	SessionExpiry    uint32 // received only: MQTT 5, 3.14.2-2
	ReasonString     string
	ServerReference  string // sent only
}

// Auth is an AUTH packet, read from a client or to be sent to one.
type Auth struct {
	Reason       byte // from a client 0x18 or 0x19
	Method       string
	Data         []byte // nil when absent
	ReasonString string
}

// Connack is a CONNACK packet to be sent. Of Properties everything that a CONNACK may hold is sent.
type Connack struct {
	SessionPresent bool
	Reason         byte // the reason code of MQTT 5; for 3.1.1 the return code of 3.1.1
	Properties     packets.Properties
}

// Type returns packets.Connect.
func (*Connect) Type() byte { return packets.Connect }

// Type returns packets.Publish.
func (*Publish) Type() byte { return packets.Publish }

// Type returns Kind.
func (a *Ack) Type() byte { return a.Kind }

// Type returns packets.Subscribe.
func (*Subscribe) Type() byte { return packets.Subscribe }

// Type returns packets.Unsubscribe.
func (*Unsubscribe) Type() byte { return packets.Unsubscribe }

// Type returns packets.Pingreq.
func (*Pingreq) Type() byte { return packets.Pingreq }

// Type returns packets.Disconnect.
func (*Disconnect) Type() byte { return packets.Disconnect }

// Type returns packets.Auth.
func (*Auth) Type() byte { return packets.Auth }

// PayloadFormatValid reports whether the payload is what the Payload Format Indicator says. A receiver may check it and
// answer 0x99 (MQTT 5, 3.3.2.3.2).
func (p *Publish) PayloadFormatValid() bool {
	return p.Properties == nil || p.Properties.PayloadFormat == 0 || utf8.Valid(p.Payload)
}

// Record turns p into a record for the spool. The record shares p's memory. A topic alias must be resolved before.
func (p *Publish) Record(clientID, userName string, received time.Time) *spool.Record {
	r := new(spool.Record)
	p.Into(r, clientID, userName, received)
	return r
}

// Into is Record into memory of the caller.
func (p *Publish) Into(r *spool.Record, clientID, userName string, received time.Time) {
	*r = spool.Record{
		Topic:      p.Topic,
		ClientID:   clientID,
		UserName:   userName,
		Payload:    p.Payload,
		Properties: p.Properties,
		ReceivedAt: received.UnixNano(),
		QoS:        p.QoS,
		Retain:     p.Retain,
	}
	if p.HasExpiry {
		r.ExpiresAt = r.ReceivedAt + int64(p.Expiry)*int64(time.Second)
	}
}

// FromRecord makes p the PUBLISH that delivers r at now: topic, payload, properties, and what is left of the expiry, in
// whole seconds and never 0. It returns false when r's time is over. QoS, packet identifier, retain, subscription
// identifiers and alias belong to the subscription and are left to the caller; all others of p are overwritten.
func (p *Publish) FromRecord(r *spool.Record, now time.Time) bool {
	p.Topic, p.Payload, p.Properties = r.Topic, r.Payload, r.Properties
	p.Expiry, p.HasExpiry = 0, false
	if r.ExpiresAt == 0 {
		return true
	}
	left := r.ExpiresAt - now.UnixNano()
	if whole := r.ExpiresAt - r.ReceivedAt; whole > 0 { // the spool moves ExpiresAt with a clock that is set, and it may be the earlier then
		left = min(left, whole) // a clock that was set back must not lengthen it
	}
	if left <= 0 {
		return false
	}
	// MQTT 5, 3.3.2-6: the received value minus the time that the message has been waiting, which counts in whole seconds.
	// What the stream set is no business of the receiver.
	if !r.StreamTTL {
		p.Expiry = uint32(min((left+int64(time.Second)-1)/int64(time.Second), math.MaxUint32))
		p.HasExpiry = true
	}
	return true
}
