package admin

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// Config is what an operator sets.
type Config struct {
	// Address of the admin listener: health, readiness and metrics over HTTP. Port 0 takes a free one, which is logged.
	Address string `yaml:"address"`

	// Allow an address that other machines reach, and requests for any host name. Health, metrics and profiles are without
	// authentication: what guards them is a firewall or the network of a container.
	AllowRemote bool `yaml:"allow_remote"`

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
		errs = append(errs, fmt.Errorf("address: other machines reach %s, and health and metrics have no authentication: "+
			"want a loopback address, or allow_remote: true behind a firewall", c.Address))
	}
	return errors.Join(errs...)
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
