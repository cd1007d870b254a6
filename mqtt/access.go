package mqtt

import (
	"net"

	"github.com/forebay-gateway/forebay/mqtt/auth"
)

// Client is who asks.
type Client struct {
	ID       string
	UserName string
	Listener string
	Remote   net.Addr
}

// Access decides what clients may do in the place of the configuration: with one, nothing of Config.Auth is used. Its methods
// are called by the readers of many connections at the same time, and a connection is not read meanwhile. An error refuses;
// its reason code is that of the package's errors, 0x80 for others.
type Access interface {
	// Connect decides about a CONNECT. password is nil when the client sent none.
	Connect(c Client, password []byte) error

	// Publish decides about a PUBLISH and, at CONNECT, about a will.
	Publish(c Client, topic string, qos byte, retain bool) error

	// Subscribe decides about one topic filter, $share/{name}/ included.
	Subscribe(c Client, filter string, qos byte) error
}

// admission is as whom a connection was let in, and what that one may do. It is replaced as a whole: when the rules change, and
// when the client authenticates again.
type admission struct {
	subject    auth.Subject
	rights     *auth.Permissions // nil with an Access
	generation uint64            // of the rules
}

// become makes the connection that of an identity.
func (c *conn) become(clientID string, id *auth.Identity) {
	a := &admission{subject: auth.Subject{ClientID: clientID, Listener: c.lst.cfg.Name, Identity: id}}
	if c.srv.auth != nil {
		a.generation = c.srv.auth.Generation() // before the rules: newer ones do no harm
		a.rights = c.srv.auth.Permissions(a.subject)
	}
	c.admitted.Store(a)
}

// rights are what the client may do by the rules of now. Anybody may ask.
func (c *conn) rights() *auth.Permissions {
	a := c.admitted.Load()
	generation := c.srv.auth.Generation()
	if a.generation == generation {
		return a.rights
	}
	fresh := &admission{subject: a.subject, rights: c.srv.auth.Permissions(a.subject), generation: generation}
	c.admitted.CompareAndSwap(a, fresh) // or somebody else was faster
	return fresh.rights
}

func (c *conn) client() Client {
	s := c.admitted.Load().subject
	return Client{ID: s.ClientID, UserName: s.Identity.User, Listener: s.Listener, Remote: c.nc.RemoteAddr()}
}

// mayPublish decides about a PUBLISH or a will.
func (c *conn) mayPublish(topic string, qos byte, retain bool) error {
	if a := c.srv.access; a != nil {
		return a.Publish(c.client(), topic, qos, retain)
	}
	if !c.rights().Publish(topic, qos, retain) {
		return ErrNotAuthorized
	}
	return nil
}

// maySubscribeTo decides about a filter.
func (c *conn) maySubscribeTo(filter string, qos byte) error {
	if a := c.srv.access; a != nil {
		return a.Subscribe(c.client(), filter, qos)
	}
	r := c.rights()
	if !r.Subscribe(filter, qos) || !r.Ruled() && ours(auth.WithoutShare(filter)) {
		return ErrNotAuthorized // without rules everybody may everything, but not read who came in from where
	}
	return nil
}

// mayReceive decides about a delivery. What was granted is not always still allowed: the rules change, and a session may be
// resumed by another user.
func (c *conn) mayReceive(topic string, qos byte) bool {
	if c.srv.auth == nil {
		return true
	}
	r := c.rights()
	return r.Receive(topic, qos) && (r.Ruled() || !ours(topic))
}

// denied drops what the client may not receive any more, as if it had been delivered.
func (s *session) denied(c *conn, topic string, qos byte) bool {
	if c.mayReceive(topic, qos) {
		return false
	}
	s.srv.metrics.drop(dropDenied)
	return true
}

// recheck ends the connection when its client would not be let in again.
func (c *conn) recheck() {
	a := c.admitted.Load()
	if a == nil || c.srv.auth == nil {
		return
	}
	switch err := c.srv.auth.Still(a.subject, remoteAddr(c.nc)); err {
	case nil:
		c.rights()
	case auth.ErrBanned:
		c.closeFor(errBannedNow)
	default:
		c.closeFor(ErrNotAuthorized)
	}
}

// rulesChanged looks at every connection again.
func (srv *Server) rulesChanged() {
	srv.connMu.Lock()
	open := make([]*conn, 0, len(srv.conns))
	for c := range srv.conns {
		if c.bound.Load() { // the others look by themselves once they are
			open = append(open, c)
		}
	}
	srv.connMu.Unlock()
	for _, c := range open {
		c.recheck()
	}
}

// ReloadAuth reads the files of mqtt.auth again. A file with a fault keeps its old content, and the error names the line. The
// new rules count for the clients that are connected too.
func (srv *Server) ReloadAuth() error {
	if srv.auth == nil {
		return nil
	}
	err := srv.auth.Reload()
	srv.rulesChanged()
	return err
}

// Ban keeps a client out and ends its connections.
func (srv *Server) Ban(b auth.Ban) error {
	if srv.auth == nil {
		return nil
	}
	if err := srv.auth.Ban(b); err != nil {
		return err
	}
	srv.rulesChanged()
	return nil
}

// Unban takes bans with the conditions of b away, and returns how many.
func (srv *Server) Unban(b auth.Ban) (int, error) {
	if srv.auth == nil {
		return 0, nil
	}
	return srv.auth.Unban(b)
}

// Bans lists the bans that are in force.
func (srv *Server) Bans() []auth.Ban {
	if srv.auth == nil {
		return nil
	}
	return srv.auth.Bans()
}
