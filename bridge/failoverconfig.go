package bridge

import (
	"cmp"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

// Failover says where a route goes on when its upstream is of no use.
type Failover struct {
	// Names of other upstreams, in the order of choice. Each record goes to one of them. docs/UPSTREAMS.md says which ones may
	// come to two clusters. Empty: the route waits for its upstream, however long that takes.
	To []string `yaml:"to"`

	// How long the upstream may acknowledge nothing of what the route has for it, before the route goes on with the first other
	// one that answers. While there is none it stays. It takes longer than a broker's restart; each move without an
	// acknowledgement behind it doubles it, up to 16 times.
	After unit.Duration `yaml:"after"`

	// auto: the route goes back to its first upstream when that has been healthy for fail_back_after; never: it stays until
	// forebay route failover sends it back, as it does wherever an operator has sent it.
	FailBack string `yaml:"fail_back"`

	// How long the first upstream has to be healthy without a break. A return that did not last doubles it, up to 16 times.
	FailBackAfter unit.Duration `yaml:"fail_back_after"`
}

func (c Failover) withDefaults() Failover {
	c.After = cmp.Or(c.After, unit.Duration(time.Minute))
	c.FailBack = cmp.Or(c.FailBack, FailBackAuto)
	c.FailBackAfter = cmp.Or(c.FailBackAfter, unit.Duration(5*time.Minute))
	return c
}

func (c Failover) validate(first string, upstreams []string, fault func(string, ...any)) {
	if d := (Failover{}).withDefaults(); len(c.To) == 0 && (c.After != d.After || c.FailBack != d.FailBack || c.FailBackAfter != d.FailBackAfter) {
		fault(".failover.to: there is none, and the other keys of failover do nothing; list the upstreams to go on with")
	}
	seen := map[string]bool{first: true}
	for i, name := range c.To {
		switch {
		case name == EmbeddedUpstream || first == EmbeddedUpstream:
			fault(".failover.to[%d]: the embedded upstream goes away with the gateway: it is neither a standby nor has one", i)
		case !contains(upstreams, name):
			fault(".failover.to[%d]: unknown upstream %q; there are %s", i, name, strings.Join(upstreams, ", "))
		case seen[name]:
			fault(".failover.to[%d]: %q is in the list already", i, name)
		}
		seen[name] = true
	}
	if c.After < unit.Duration(time.Second) {
		fault(".failover.after: %v is less than 1s", c.After)
	}
	if c.FailBack != FailBackAuto && c.FailBack != FailBackNever {
		fault(".failover.fail_back: %q is neither auto nor never", c.FailBack)
	}
	if c.FailBackAfter < unit.Duration(time.Second) {
		fault(".failover.fail_back_after: %v is less than 1s", c.FailBackAfter)
	}
}
