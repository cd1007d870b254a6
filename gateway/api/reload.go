package api

import (
	"context"
	"net/http"
)

// Reloaded is what a reload has come to.
type Reloaded struct {
	Changed []string `json:"changed"`             // keys of the configuration that are in use now
	Waiting []string `json:"waiting_for_restart"` // keys that differ from what runs
}

// reload serves POST /api/v1/reload: what SIGHUP does, with its faults in the answer.
func (s *server) reload(mux *http.ServeMux) {
	mux.HandleFunc("POST /api/v1/reload", s.answer(func(ctx context.Context, _ *query) (any, error) {
		if s.o.Reload == nil || s.o.Front == nil || s.o.Front() == nil {
			return nil, noFront
		}
		return s.o.Reload(ctx)
	}))
}

// Reload has the gateway read its files and its configuration again.
func (c *Client) Reload(ctx context.Context) (Reloaded, error) {
	return call[Reloaded](ctx, c, http.MethodPost, "/reload", nil)
}
