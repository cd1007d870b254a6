package api

import (
	"context"
	"net/http"
	"net/url"

	"github.com/forebay-gateway/forebay/bridge/replay"
)

// Replays is the list of replays.
type Replays struct {
	Replays []replay.Status `json:"replays"`
}

// replays serves
//
//	GET  /api/v1/replays               those that run, and those that have ended not long ago
//	POST /api/v1/replays               one more; parameters stream, from, to, filter (may repeat), client, route, upstream, topic, to_mqtt=true,
//	                                   prefix, rate, dry_run=true
//	GET  /api/v1/replays/{id}          one
//	POST /api/v1/replays/{id}/cancel   and resume
func (s *server) replays(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/v1/replays", s.answerReplay(func(_ context.Context, e *replay.Engine, _ *http.Request) (any, error) {
		return Replays{e.List()}, nil
	}))
	mux.HandleFunc("POST /api/v1/replays", s.answerReplay(func(ctx context.Context, e *replay.Engine, r *http.Request) (any, error) {
		return e.Start(ctx, replayRequest(r.URL.Query()))
	}))
	mux.HandleFunc("GET /api/v1/replays/{id}", s.answerReplay(func(_ context.Context, e *replay.Engine, r *http.Request) (any, error) {
		return e.Show(r.PathValue("id"))
	}))
	mux.HandleFunc("POST /api/v1/replays/{id}/cancel", s.answerReplay(func(ctx context.Context, e *replay.Engine, r *http.Request) (any, error) {
		return e.Cancel(ctx, r.PathValue("id"))
	}))
	mux.HandleFunc("POST /api/v1/replays/{id}/resume", s.answerReplay(func(ctx context.Context, e *replay.Engine, r *http.Request) (any, error) {
		return e.Resume(ctx, r.PathValue("id"))
	}))
}

func (s *server) answerReplay(fn func(context.Context, *replay.Engine, *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		leave, ok := s.admit(w, r)
		if !ok {
			return
		}
		defer leave()
		var e *replay.Engine
		if s.o.Replay != nil {
			e = s.o.Replay()
		}
		if e == nil {
			write(w, http.StatusServiceUnavailable, fault{"replay is not open: see /readyz"})
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), maxLook)
		defer cancel()
		v, err := fn(ctx, e, r)
		if err != nil {
			write(w, statusOf(err), fault{err.Error()})
			return
		}
		write(w, http.StatusOK, v)
	}
}

func replayRequest(q url.Values) replay.Request {
	return replay.Request{
		Stream: q.Get("stream"), From: q.Get("from"), To: q.Get("to"), Filters: q["filter"], ClientID: q.Get("client"), Route: q.Get("route"),
		Upstream: q.Get("upstream"), Topic: q.Get("topic"), ToMQTT: q.Get("to_mqtt") == "true", Prefix: q.Get("prefix"), Rate: q.Get("rate"),
		DryRun: q.Get("dry_run") == "true",
	}
}

func replayValues(r replay.Request) url.Values {
	v := values{}
	v.text("stream", r.Stream)
	v.text("from", r.From)
	v.text("to", r.To)
	v.text("client", r.ClientID)
	v.text("route", r.Route)
	v.text("upstream", r.Upstream)
	v.text("topic", r.Topic)
	v.text("prefix", r.Prefix)
	v.text("rate", r.Rate)
	if r.ToMQTT {
		v.text("to_mqtt", "true")
	}
	if r.DryRun {
		v.text("dry_run", "true")
	}
	q := url.Values(v)
	if len(r.Filters) > 0 {
		q["filter"] = r.Filters
	}
	return q
}

// Replays lists the replays.
func (c *Client) Replays(ctx context.Context) (Replays, error) {
	return call[Replays](ctx, c, http.MethodGet, "/replays", nil)
}

// Replay describes one.
func (c *Client) Replay(ctx context.Context, id string) (replay.Status, error) {
	return call[replay.Status](ctx, c, http.MethodGet, "/replays/"+url.PathEscape(id), nil)
}

// StartReplay begins one.
func (c *Client) StartReplay(ctx context.Context, r replay.Request) (replay.Status, error) {
	return call[replay.Status](ctx, c, http.MethodPost, "/replays", replayValues(r))
}

// CancelReplay ends one where it is.
func (c *Client) CancelReplay(ctx context.Context, id string) (replay.Status, error) {
	return call[replay.Status](ctx, c, http.MethodPost, "/replays/"+url.PathEscape(id)+"/cancel", nil)
}

// ResumeReplay has one go on that was cancelled or has failed.
func (c *Client) ResumeReplay(ctx context.Context, id string) (replay.Status, error) {
	return call[replay.Status](ctx, c, http.MethodPost, "/replays/"+url.PathEscape(id)+"/resume", nil)
}
