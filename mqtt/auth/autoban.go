package auth

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/transport"
)

// autoBan keeps addresses out from where failures come.
type autoBan struct {
	cfg    AutoBanConfig
	except []netip.Prefix
	counts *cache[netip.Prefix, failures]
}

// failures are those of one window.
type failures struct {
	since time.Time
	n     int
}

// newAutoBan returns nil when nobody is to be kept out.
func newAutoBan(cfg AutoBanConfig) *autoBan {
	if cfg.Failures == 0 {
		return nil
	}
	a := &autoBan{cfg: cfg, counts: newCache[netip.Prefix, failures](throttleTable)}
	for _, s := range cfg.Except {
		if p, err := ParseAddress(s); err == nil {
			a.except = append(a.except, p)
		}
	}
	return a
}

// failed counts a failure; a ban is for the caller to add.
func (a *autoBan) failed(from netip.Addr, now time.Time) (b Ban, ok bool) {
	source := transport.Source(from)
	if a == nil || !source.IsValid() {
		return b, false
	}
	for _, p := range a.except {
		if p.Contains(from.Unmap().WithZone("")) {
			return b, false
		}
	}
	a.counts.update(source, now, func(f failures) failures {
		if f.since.IsZero() || now.Sub(f.since) >= a.cfg.Within.Std() {
			f = failures{since: now}
		}
		f.n++
		if f.n >= a.cfg.Failures {
			ok, f = true, failures{} // counted anew when the ban is over, which may be before the window is
		}
		return f
	})
	if !ok {
		return b, false
	}
	return Ban{
		Address: source, Until: now.Add(a.cfg.For.Std()), Automatic: true,
		Reason: fmt.Sprintf("%d failures within %v", a.cfg.Failures, a.cfg.Within),
	}, true
}
