package mqtt

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"
)

// ErrReload means that files have a fault and the old content stays in force.
var ErrReload = errors.New("not used, the old content stays in force")

// Reload reads again what may change while clients are connected: the files of mqtt.auth, and the certificates, keys, CAs and
// revocation lists of the listeners. What has a fault is not used, and the error says why; the old content stays in force.
func (srv *Server) Reload() error {
	_, err := srv.reloadCertificates()
	if err := errors.Join(srv.ReloadAuth(), err); err != nil {
		return fmt.Errorf("%w: %w", ErrReload, err)
	}
	return nil
}

// reloadCertificates looks at the files of all listeners. Handshakes from now on go by them. Open connections stay, but for those
// whose certificate a new list revokes.
func (srv *Server) reloadCertificates() (news bool, err error) {
	var errs []error
	for _, l := range srv.listeners {
		if l.tls == nil {
			continue
		}
		changed, err := l.tls.Reload()
		if changed {
			news = true
			result := "ok"
			if err != nil {
				result = "failed"
			}
			srv.metrics.certificateReloads.WithLabelValues(result).Inc()
			srv.recordCertificates(l.cfg.Name, err)
			srv.metrics.notAfter.WithLabelValues(l.cfg.Name).Set(float64(l.tls.Expiry().Unix()))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("listener %s: %w", l.cfg.Name, err))
		}
	}
	if news {
		srv.endRevoked()
	}
	return news, errors.Join(errs...)
}

// watchCertificates looks at the files every certificate_reload_interval.
func (srv *Server) watchCertificates(ctx context.Context) {
	if srv.cfg.CertificateReloadInterval == 0 {
		return
	}
	tick := time.NewTicker(srv.cfg.CertificateReloadInterval.Std())
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if news, err := srv.reloadCertificates(); news && err != nil {
				srv.log.Error("changed files are not used, the old ones stay in force", "err", err)
			}
		}
	}
}

// endRevoked ends the connections of clients whose certificate has been revoked.
func (srv *Server) endRevoked() {
	srv.connMu.Lock()
	var open []*conn
	for c := range srv.conns {
		if c.lst.tls != nil {
			open = append(open, c)
		}
	}
	srv.connMu.Unlock()
	for _, c := range open {
		if c.revoked() {
			c.closeFor(ErrNotAuthorized)
		}
	}
}

// revoked reports whether the lists of now name the certificate of the connection.
func (c *conn) revoked() bool {
	if c.lst.tls == nil {
		return false
	}
	state, ok := connectionState(c.nc)
	return ok && c.lst.tls.Revoked(state)
}

// connectionState is that of the TLS connection at the bottom of nc.
func connectionState(nc net.Conn) (tls.ConnectionState, bool) {
	for nc != nil {
		if t, ok := nc.(interface{ ConnectionState() tls.ConnectionState }); ok {
			return t.ConnectionState(), true
		}
		inner, ok := nc.(interface{ NetConn() net.Conn }) // a WebSocket
		if !ok {
			break
		}
		nc = inner.NetConn()
	}
	return tls.ConnectionState{}, false
}

// Health is nil, or says what somebody has to do something about: files of mqtt.auth or of a listener that are not in use, a certificate
// or a revocation list that has expired. And whose acknowledgements do not wait for the upstream although they should.
func (srv *Server) Health() error {
	var errs []error
	if srv.auth != nil {
		errs = append(errs, srv.auth.Health())
	}
	if srv.upstream != nil {
		errs = append(errs, srv.upstream.health(time.Now()))
	}
	for _, l := range srv.listeners {
		if l.tls == nil {
			continue
		}
		if err := l.tls.Health(); err != nil {
			errs = append(errs, fmt.Errorf("listener %s: %w", l.cfg.Name, err))
		}
	}
	return errors.Join(errs...)
}
