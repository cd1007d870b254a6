package mqtt

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/auth"
	"github.com/forebay-gateway/forebay/mqtt/wire"
)

// enhanced is the authentication method of a CONNECT that named one (MQTT 5, 4.12).
type enhanced struct {
	method   string
	exchange *auth.Exchange // a new authentication that is under way, or nil
}

// enter decides who the client of a CONNECT is. last is what the CONNACK carries of an enhanced authentication. A connection
// is not read meanwhile; it may take as long as connect_timeout.
func (c *conn) enter(ctx context.Context, p *wire.Connect) (last []byte, err error) {
	if c.srv.auth != nil {
		c.entered = c.srv.auth.Generation()
	}
	id, last, err := c.authenticate(ctx, p)
	if err == nil {
		err = c.stillWelcome(p.ClientID, id)
	}
	if err != nil {
		return nil, err
	}
	p.UserName = id.User
	c.userName = id.User
	c.become(p.ClientID, id)
	c.expireAt(id.ExpiresAt)
	return last, nil
}

// stillWelcome asks again when rules, users or bans have changed since the question: a hash, a hook or the client itself may have taken
// seconds, and rulesChanged does not see who is not in yet.
func (c *conn) stillWelcome(clientID string, id *auth.Identity) error {
	a := c.srv.auth
	if a == nil {
		return nil
	}
	now := a.Generation()
	if now == c.entered {
		return nil
	}
	c.entered = now
	return a.Still(auth.Subject{ClientID: clientID, Listener: c.lst.cfg.Name, Identity: id}, remoteAddr(c.nc))
}

func (c *conn) authenticate(ctx context.Context, p *wire.Connect) (*auth.Identity, []byte, error) {
	if a := c.srv.access; a != nil {
		if p.HasAuthMethod {
			return nil, nil, auth.ErrBadMethod
		}
		who := Client{ID: p.ClientID, UserName: p.UserName, Listener: c.lst.cfg.Name, Remote: c.nc.RemoteAddr()}
		return &auth.Identity{User: p.UserName}, nil, a.Connect(who, p.Password)
	}
	ctx, cancel := context.WithTimeout(ctx, c.srv.cfg.ConnectTimeout.Std())
	defer cancel()
	r := &auth.Request{
		ClientID: p.ClientID, HasUser: p.HasUserName, User: p.UserName, HasPassword: p.HasPassword, Password: p.Password,
		Listener: c.lst.cfg.Name, Remote: remoteAddr(c.nc), Certificate: verifiedCertificate(c.nc),
	}
	if p.HasAuthMethod {
		return c.exchangeData(ctx, p, r)
	}
	id, err := c.srv.auth.Authenticate(ctx, r)
	return id, nil, err
}

// exchangeData is the enhanced authentication of a CONNECT (MQTT 5, 4.12).
func (c *conn) exchangeData(ctx context.Context, p *wire.Connect, r *auth.Request) (*auth.Identity, []byte, error) {
	c.dec.SetLimit(uint32(c.srv.cfg.MaxConnectSize)) // nobody is authenticated yet
	defer c.dec.SetLimit(uint32(c.srv.cfg.MaxPacketSize))
	x, step, err := c.srv.auth.Start(ctx, r, p.AuthMethod, p.AuthData)
	for err == nil && step.Identity == nil {
		question := c.peer.AppendAuth(nil, &wire.Auth{Reason: reasonContinue, Method: p.AuthMethod, Data: step.Data})
		if len(question) == 0 { // MQTT 5, 3.1.2-24
			err = errConnackSize
			break
		}
		c.out.control(func(b []byte) []byte { return append(b, question...) })
		c.out.wake()
		var next wire.Packet
		if next, err = c.dec.Read(); err != nil {
			break
		}
		a, ok := next.(*wire.Auth)
		if _, left := next.(*wire.Disconnect); left {
			err = io.EOF
		} else if !ok { // MQTT 5, 3.1.2-30
			err = protocolError("only AUTH and DISCONNECT until the authentication is over")
		} else if a.Method != p.AuthMethod || a.Reason != reasonContinue { // MQTT 5, 4.12.0-3 and 4.12.0-5
			err = protocolError("an authentication is under way")
		} else {
			step, err = x.Step(ctx, a.Data)
		}
	}
	if err != nil {
		if lost(err) {
			c.closeFor(err) // there is nobody to answer
		}
		return nil, nil, err
	}
	c.enhanced = &enhanced{method: p.AuthMethod}
	return step.Identity, step.Data, nil
}

// reauthenticate deals with an AUTH of a client that is in (MQTT 5, 4.12.1); false ends the connection. The client goes on as
// who it was until it is over.
func (c *conn) reauthenticate(ctx context.Context, a *wire.Auth) bool {
	step, err := c.authStep(ctx, a)
	switch {
	case err == nil && step.Identity == nil:
		c.answerAuth(reasonContinue, step.Data)
		return true
	case err == nil && step.Identity.User != c.userName: // its session and its records are those of a user
		err = ErrNotAuthorized
	}
	if c.enhanced != nil {
		c.enhanced.exchange = nil
	}
	if err != nil {
		if _, protocol := err.(*wire.Error); !protocol {
			err = ErrNotAuthorized // what a DISCONNECT may say
		}
		c.closeFor(err)
		return false
	}
	c.become(c.sess.id, step.Identity)
	if c.recheck(); c.endCause() != nil { // users, rules or bans have changed while it was under way
		return false
	}
	c.expireAt(step.Identity.ExpiresAt)
	c.answerAuth(reasonSuccess, step.Data)
	return true
}

func (c *conn) authStep(ctx context.Context, a *wire.Auth) (auth.Step, error) {
	e := c.enhanced
	switch {
	case e == nil: // MQTT 5, 4.12.0-6 and 4.12.0-7
		return auth.Step{}, protocolError("no authentication method was agreed on")
	case a.Method != e.method: // MQTT 5, 4.12.1-1
		return auth.Step{}, protocolError("another authentication method than that of the CONNECT")
	case (a.Reason == reasonReauthenticate) == (e.exchange != nil):
		return auth.Step{}, protocolError("reason code does not fit the state of the authentication")
	case e.exchange != nil:
		return e.exchange.Step(ctx, a.Data)
	}
	x, step, err := c.srv.auth.Start(ctx, &auth.Request{
		ClientID: c.sess.id, Listener: c.lst.cfg.Name, Remote: remoteAddr(c.nc), Certificate: verifiedCertificate(c.nc),
	}, a.Method, a.Data)
	e.exchange = x
	return step, err
}

// expireAt ends the connection when the credentials do; the zero time never.
func (c *conn) expireAt(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.expiry != nil {
		c.expiry.Stop()
		c.expiry = nil
	}
	if !at.IsZero() && c.cause == nil {
		c.expiry = time.AfterFunc(at.Sub(c.srv.now()), func() { c.closeFor(errCredentialsExpired) })
	}
}

// remoteAddr is where the client is, the zero Addr when that has no address.
func remoteAddr(nc net.Conn) netip.Addr {
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	if a, err := netip.ParseAddrPort(nc.RemoteAddr().String()); err == nil {
		return a.Addr().Unmap()
	}
	return netip.Addr{}
}

// verifiedCertificate is that of the client, nil without one that was verified.
func verifiedCertificate(nc net.Conn) *x509.Certificate {
	for nc != nil {
		if t, ok := nc.(interface{ ConnectionState() tls.ConnectionState }); ok {
			if st := t.ConnectionState(); len(st.VerifiedChains) > 0 {
				return st.VerifiedChains[0][0]
			}
			return nil
		}
		inner, ok := nc.(interface{ NetConn() net.Conn }) // a WebSocket
		if !ok {
			return nil
		}
		nc = inner.NetConn()
	}
	return nil
}

// answerAuth sends an AUTH.
func (c *conn) answerAuth(reason byte, data []byte) {
	c.out.control(func(b []byte) []byte {
		return c.peer.AppendAuth(b, &wire.Auth{Reason: reason, Method: c.enhanced.method, Data: data})
	})
	c.out.wake()
}

var (
	reasonContinue       = packets.CodeContinueAuthentication.Code
	reasonReauthenticate = packets.CodeReAuthenticate.Code
)
