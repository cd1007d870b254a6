package admin

import (
	"crypto/tls"
	"net"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/transport"
)

const (
	certificateLook = 5 * time.Second // between two looks at the files
	handshakesAtOne = 2               // for operators and scrapers: they are few
)

// secure makes l a listener with TLS, if the configuration has it.
func (s *Server) secure(l net.Listener) (net.Listener, error) {
	if !s.cfg.Secure() {
		return l, nil
	}
	t, err := transport.NewTLS(s.cfg.TLS, transport.Options{
		Listener: "admin", ALPN: transport.ALPNHTTP, Slots: transport.NewSlots(handshakesAtOne, nil), Logger: s.log, Now: time.Now,
	})
	if err != nil {
		return nil, err
	}
	s.tls = t
	return tls.NewListener(l, t.Server()), nil
}

// watch looks at the certificates until the server is closed.
func (s *Server) watch() {
	tick := time.NewTicker(certificateLook)
	defer tick.Stop()
	for {
		select {
		case <-s.closed:
			return
		case <-tick.C:
			if news, err := s.tls.Reload(); news && err != nil {
				s.log.Error("changed files are not used, the old ones stay in force", "err", err)
			}
		}
	}
}

// Health is nil, or says which certificates are not in use, or have expired.
func (s *Server) Health() error {
	s.mu.Lock()
	t := s.tls
	s.mu.Unlock()
	if t == nil {
		return nil
	}
	return t.Health()
}
