package bridge

import (
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

// The orders in which a route that is behind delivers.
const (
	OldestFirst = "oldest_first"
	LiveFirst   = "live_first"
)

const defaultLiveAfter = unit.Duration(time.Minute)

func (c RouteConfig) validateDrain(fault func(string, ...any)) {
	switch c.Drain {
	case LiveFirst:
		if c.Delivery == ExactlyOnce {
			fault(".drain: live_first is not for delivery: exactly_once yet; say drain: oldest_first, or delivery: at_least_once")
		}
		if c.LiveAfter < unit.Duration(time.Second) {
			fault(".live_after: %v is less than 1s", c.LiveAfter)
		}
	case OldestFirst:
		if c.LiveAfter != 0 {
			fault(".live_after: it does nothing with drain: oldest_first; say drain: live_first, or leave it out")
		}
		if c.BacklogRate != 0 {
			fault(".backlog_rate: it does nothing with drain: oldest_first; say drain: live_first, or use rate")
		}
	default:
		fault(".drain: %q is neither oldest_first nor live_first", c.Drain)
	}
	if c.BacklogRate < 0 || c.BacklogRate > 0 && c.BacklogRate < 1<<10 {
		fault(".backlog_rate: %v is less than 1KiB/s; 0 is no limit of its own", c.BacklogRate)
	}
}
