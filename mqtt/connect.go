package mqtt

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/wire"
	"github.com/forebay-gateway/forebay/spool"
)

// connect reads the CONNECT, answers it and gives the connection its session.
func (c *conn) connect(ctx context.Context) error {
	patience := c.srv.cfg.ConnectTimeout.Std()
	if c.refusal != nil {
		patience = min(patience, turnedAwayTime)
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(patience))
	p, err := c.dec.Read()
	if err != nil {
		var we *wire.Error
		if errors.As(err, &we) {
			c.end0(err)
			c.tellLimit(err)
			c.lst.stranger(c.nc.RemoteAddr(), we)
			c.recordRefused(nil, we.Code.Code, err)
			c.refuse(wire.Peer{Version: we.Version}, we.Code.Code, we.Detail)
			return err
		}
		c.closeFor(err)
		if !lost(err) {
			c.recordRefused(nil, reasonOf(err), fmt.Errorf("no CONNECT: %w", err))
		}
		return err
	}
	hello, ok := p.(*wire.Connect)
	if !ok { // the decoder lets nothing else pass
		c.closeFor(errors.New("the first packet is no CONNECT"))
		return errors.New("no connect")
	}
	c.claimed = hello.ClientID
	c.peer = wire.Peer{Version: hello.Version, NoProblemInfo: !hello.RequestProblemInfo, MaxPacket: hello.MaxPacketSize}
	c.told.max = min(int(hello.TopicAliasMaximum), c.srv.cfg.TopicAliasMaximum)
	ack, reason, text := c.greet(ctx, hello)
	if reason == reasonSuccess {
		// Before CONNACK: who has it may open the next connection at once.
		c.arrived = true
		c.lst.addresses.arrived(remoteAddr(c.nc))
		err = c.srv.attach(ctx, c, hello, ack)
		reason = reasonOf(err)
		c.tellLimit(err)
	}
	if reason != reasonSuccess {
		if err == nil {
			err = errors.New(text)
		}
		c.end0(fmt.Errorf("refused with reason 0x%02X: %w", reason, err))
		c.recordRefused(hello, reason, c.endCause())
		c.refuse(c.peer, reason, text)
		return errors.New("refused")
	}
	c.srv.metrics.connects.Inc()
	c.recordConnected(hello, ack.SessionPresent)
	if a := c.srv.auth; a != nil && c.entered != a.Generation() {
		c.recheck() // the rules changed while nobody could see this connection
	}
	c.extendDeadline()
	if c.keepAlive == 0 {
		_ = c.nc.SetReadDeadline(time.Time{})
		if c.srv.draining.Load() {
			_ = c.nc.SetReadDeadline(time.Unix(1, 0))
		}
	}
	return nil
}

// end0 notes the cause of an end before the session is known.
func (c *conn) end0(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause == nil {
		c.cause = err
	}
}

// endCause is why the connection ends, as far as it is known.
func (c *conn) endCause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// greet checks the CONNECT and prepares what CONNACK tells: for MQTT 5 every limit that is enforced.
func (c *conn) greet(ctx context.Context, p *wire.Connect) (ack *wire.Connack, reason byte, text string) {
	cfg := &c.srv.cfg
	if c.refusal != nil {
		c.end0(c.refusal)
		c.tellLimit(c.refusal)
		return nil, reasonOf(c.refusal), ""
	}
	ack = &wire.Connack{}
	pr := &ack.Properties
	if p.ClientID == "" {
		if p.Version == wire.Version311 && !p.CleanStart { // MQTT 3.1.1, 3.1.3-8
			return nil, reasonClientIDInvalid, ""
		}
		p.ClientID = assignClientID()
		pr.AssignedClientID = p.ClientID
	}
	if len(p.ClientID) > maxClientID {
		return nil, reasonClientIDInvalid, "client ID is too long"
	}
	if internalClient(p.ClientID) {
		return nil, reasonClientIDInvalid, "client ID is the gateway's own"
	}
	last, err := c.enter(ctx, p)
	if err != nil {
		c.end0(fmt.Errorf("refused: %w", err)) // the client is not told as much
		return nil, reasonOf(err), ""
	}
	if cfg.ServerMoved {
		return nil, reasonServerMoved, ""
	}
	if p.HasAuthMethod {
		pr.AuthenticationMethod, pr.AuthenticationData = p.AuthMethod, last
	}
	if w := p.Will; w != nil {
		if err := c.mayPublish(w.Topic, w.QoS, w.Retain); err != nil {
			c.recordDenied("will", w.Topic)
			return nil, reasonOf(err), "will is not allowed"
		}
	}
	if w := p.Will; w != nil {
		if err := c.lst.offer.allows(w.QoS, w.Retain); err != nil {
			c.tellLimit(err)
			return nil, reasonOf(err), "will: " + detail(err)
		}
		switch {
		case len(w.Topic) > c.srv.cfg.MaxTopicLength:
			c.limitReached(limitTopicLength, errTopicLong)
			return nil, errTopicLong.Code.Code, "will: " + errTopicLong.Detail
		case w.Properties != nil && len(w.Properties.User) > c.srv.cfg.MaxUserProperties:
			c.limitReached(limitUserProperties, errUserProperties)
			return nil, reasonQuotaExceeded, "will: " + errUserProperties.Error()
		case c.srv.tooDeep(w.Topic):
			c.limitReached(limitTopicLevels, errTopicDepth)
			return nil, errTopicDepth.Code.Code, "will: " + errTopicDepth.Detail
		case w.Retain && len(w.Topic) > spool.MaxKey:
			return nil, errTopicLength.Code.Code, "will: " + errTopicLength.Detail
		case reserved(w.Topic):
			return nil, errTopicName.Code.Code, "will: " + errTopicName.Detail
		case !w.PayloadFormatValid():
			return nil, errPayloadFormat.Code.Code, "will: " + errPayloadFormat.Detail
		}
	}

	c.receiveMaximum = int(p.ReceiveMaximum)
	if p.Version == wire.Version311 {
		c.receiveMaximum = cfg.MaxInflight
	}
	keep := p.KeepAlive
	if limit := cfg.MaxKeepAlive.Std(); p.Version == wire.Version5 && limit > 0 {
		if top := uint16(limit / time.Second); keep == 0 || keep > top {
			keep = top
			pr.ServerKeepAlive, pr.ServerKeepAliveFlag = keep, true
		}
	}
	c.keepAlive = time.Duration(keep) * time.Second
	if got := c.srv.capExpiry(p.SessionExpiry); got != p.SessionExpiry {
		p.SessionExpiry = got
		pr.SessionExpiryInterval, pr.SessionExpiryIntervalFlag = got, true
	}
	if prefix := cfg.ResponseTopicPrefix; prefix != "" && p.RequestResponse && !strings.ContainsAny(p.ClientID, "+#") { // MQTT 5, 3.1.2-28
		pr.ResponseInfo = prefix + p.ClientID
	}
	pr.ReceiveMaximum = uint16(cfg.ReceiveMaximum)
	pr.MaximumPacketSize = uint32(cfg.MaxPacketSize)
	pr.TopicAliasMaximum = uint16(cfg.TopicAliasMaximum)
	c.lst.offer.tell(pr)
	pr.WildcardSubAvailable, pr.WildcardSubAvailableFlag = 1, true
	pr.SubIDAvailable, pr.SubIDAvailableFlag = 1, true
	pr.SharedSubAvailable, pr.SharedSubAvailableFlag = 1, true
	if len(c.peer.AppendConnack(nil, ack)) == 0 { // MQTT 5, 3.1.2-24: what it must know cannot be told
		return nil, errConnackSize.Code.Code, ""
	}
	return ack, reasonSuccess, ""
}

var errConnackSize = &wire.Error{Code: packets.ErrPacketTooLarge, Version: wire.Version5}

// maxClientID is the longest client ID. Each packet identifier and filter that is kept has it in its key, of spool.MaxKey
// at most.
const maxClientID = 8 << 10

func assignClientID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return "forebay-" + hex.EncodeToString(b[:])
}

// capExpiry cuts a session expiry to session_expiry_max.
func (srv *Server) capExpiry(expiry uint32) uint32 {
	limit := srv.cfg.SessionExpiryMax.Std() / time.Second
	if limit == 0 || time.Duration(expiry) <= limit {
		return expiry
	}
	return uint32(limit)
}
