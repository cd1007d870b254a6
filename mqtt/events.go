package mqtt

import (
	"errors"
	"fmt"
	"io"

	"github.com/forebay-gateway/forebay/mqtt/audit"
	"github.com/forebay-gateway/forebay/mqtt/wire"
)

// Audit records an event of somebody who acts on the front from elsewhere, such as the admin API.
func (srv *Server) Audit(e audit.Event) { srv.audit.Record(e) }

// event is an event of the connection.
func (c *conn) event(name string) audit.Event {
	e := audit.Event{Name: name, Listener: c.lst.cfg.Name, Client: c.clientID(), User: c.userName, Remote: c.nc.RemoteAddr().String()}
	if a := c.admitted.Load(); a != nil {
		e.Method = string(a.subject.Identity.Method)
	}
	return e
}

// recordConnected tells of a client that has got its session.
func (c *conn) recordConnected(p *wire.Connect, present bool) {
	e := c.event(audit.Connected)
	e.Detail = fmt.Sprintf("MQTT %d, keep alive %v, session expiry %d s", p.Version, c.keepAlive, p.SessionExpiry)
	if present {
		e.Detail += ", session resumed"
	}
	if a := c.admitted.Load(); a != nil && a.subject.Identity.Certificate != nil {
		e.What = "certificate sha256:" + a.subject.Identity.Certificate.Fingerprint
	}
	c.recorded = true
	c.srv.audit.Record(e)
}

// recordDisconnected tells of the end of a client that recordConnected has told of.
func (c *conn) recordDisconnected(cause error) {
	if !c.recorded {
		return
	}
	e := c.event(audit.Disconnected)
	switch {
	case errors.Is(cause, io.EOF) && c.polite:
		e.Detail = "by DISCONNECT"
	case lost(cause):
		e.Detail = cause.Error()
	default:
		e.Reason, e.Detail = code(reasonOf(cause)), cause.Error()
	}
	c.srv.audit.Record(e)
}

// recordRefused tells of a CONNECT that was refused. What the client is not told may stand here.
func (c *conn) recordRefused(p *wire.Connect, reason byte, err error) {
	e := c.event(audit.Refused)
	if p != nil {
		e.Client = p.ClientID
		if e.User == "" {
			e.User = p.UserName
		}
	}
	e.Reason = code(reason)
	if err != nil {
		e.Detail = err.Error()
	}
	c.srv.audit.Record(e)
}

// recordDenied tells of something that the rules do not allow.
func (c *conn) recordDenied(action, topic string) {
	e := c.event(audit.Denied)
	e.Action, e.Topic, e.Reason = action, topic, code(reasonNotAuthorized)
	c.srv.audit.Record(e)
}

// recordCertificates tells of certificates, CAs and lists that have changed.
func (srv *Server) recordCertificates(listener string, err error) {
	e := audit.Event{Name: audit.Reloaded, Listener: listener, Action: "certificates"}
	if err != nil {
		e.Name, e.Detail = audit.ReloadFailed, err.Error()
	}
	srv.audit.Record(e)
}

func code(reason byte) string { return fmt.Sprintf("0x%02X", reason) }
