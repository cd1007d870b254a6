package admin

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/forebay-gateway/forebay/mqtt/transport"
)

// Config is what an operator sets.
type Config struct {
	// Address of the admin listener: health, readiness and metrics over HTTP. Port 0 takes a free one, which is logged.
	Address string `yaml:"address"`

	// Allow an address that other machines reach, and requests for any host name. Without require_auth, health, metrics and profiles are
	// for everybody who does; without tls the token goes over the network as it is.
	AllowRemote bool `yaml:"allow_remote"`

	// Certificate of the admin listener, and that of clients: with client_ca_file one that its CAs have signed counts as the token does, and with
	// client_cert: optional either is enough. Empty: no TLS. The files are looked at every 5s.
	TLS transport.TLSConfig `yaml:"tls"`

	// Whether metrics and profiles ask for the token (Authorization: Bearer) or a client certificate too, as /api/v1/ always does, and health and
	// readiness tell everybody else nothing but their one word.
	RequireAuth bool `yaml:"require_auth"`

	// Serve the profiles of Go's pprof below /debug/pprof/, at most 25 s each: what to send with a report of slowness.
	Profiling bool `yaml:"profiling"`
}

// DefaultConfig listens where only this machine reaches it.
func DefaultConfig() Config { return Config{Address: "127.0.0.1:9600"} }

// Validate reports everything that is wrong, each with the key that has to change.
func (c Config) Validate() error {
	host, port, err := net.SplitHostPort(c.Address)
	if err != nil {
		return fmt.Errorf("address: %q is not an address: want host:port, such as 127.0.0.1:9600", c.Address)
	}
	var errs []error
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		errs = append(errs, fmt.Errorf("address: %q is not a port: want 0 to 65535", port))
	}
	if !loopback(host) && !c.AllowRemote {
		errs = append(errs, fmt.Errorf("address: other machines reach %s: want a loopback address, or allow_remote: true, "+
			"with tls and require_auth: true or behind a firewall", c.Address))
	}
	if c.Secure() {
		c.TLS.Validate(func(format string, args ...any) {
			errs = append(errs, fmt.Errorf(strings.TrimPrefix(format, "."), args...))
		})
	}
	return errors.Join(errs...)
}

// Secure reports whether the listener speaks TLS.
func (c Config) Secure() bool { return c.TLS != (transport.TLSConfig{}) }

// Exposed reports whether other machines reach the listener and can read what is said there.
func (c Config) Exposed() bool {
	host, _, err := net.SplitHostPort(c.Address)
	return err == nil && !loopback(host) && !c.Secure()
}

// loopback says whether only this machine reaches host. A name other than localhost may resolve to anything.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// guard refuses requests for a host of another name. The page of a stranger in a browser on this machine reaches a loopback address under
// the name of its own host when that is made to lead here (DNS rebinding), and could then read the answers.
func (c Config) guard(next http.Handler) http.Handler {
	if c.AllowRemote {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
		if host == "" || net.ParseIP(host) != nil || host == "localhost" || strings.HasSuffix(host, ".localhost") {
			next.ServeHTTP(w, r)
			return
		}
		http.Error(w, "the admin listener is not known by this name: ask for localhost or an address, or set admin.allow_remote", http.StatusMisdirectedRequest)
	})
}
