package bridge

import (
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
)

// UpstreamHealth is how an upstream is, and what an operator can do about it.
type UpstreamHealth struct {
	Upstream string    `json:"upstream"`
	Down     time.Time `json:"down,omitzero"` // since when it is not reachable
	Reason   string    `json:"reason,omitempty"`
	Error    string    `json:"error,omitempty"`
	Hint     string    `json:"hint,omitempty"`
}

// Upstreams tells of every upstream whether it can be reached. It does not wait for routes to have something that is not
// delivered, as RouteHealth does: an address that is wrong shows at the start.
func (b *Bridge) Upstreams() []UpstreamHealth {
	out := make([]UpstreamHealth, 0, len(b.upstreams))
	for _, u := range b.upstreams {
		s := u.Status()
		h := UpstreamHealth{Upstream: u.Name(), Down: s.Down}
		if !s.Down.IsZero() && s.ConnError != nil {
			h.Reason, h.Hint = kafka.ConnectionReason(s.ConnError)
			h.Error = s.ConnError.Error()
		}
		out = append(out, h)
	}
	return out
}
