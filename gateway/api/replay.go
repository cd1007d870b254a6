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
	on := func(pattern string, fn func(context.Context, *replay.Engine, *query) (any, error)) {
		mux.HandleFunc(pattern, s.answer(from(s.o.Replay, noReplay, fn)))
	}
	on("GET /api/v1/replays", func(_ context.Context, e *replay.Engine, _ *query) (any, error) {
		return Replays{e.List()}, nil
	})
	on("POST /api/v1/replays", func(ctx context.Context, e *replay.Engine, q *query) (any, error) {
		return e.Start(ctx, replayRequest(q.Values))
	})
	on("GET /api/v1/replays/{id}", func(_ context.Context, e *replay.Engine, q *query) (any, error) {
		return e.Show(q.path("id"))
	})
	on("POST /api/v1/replays/{id}/cancel", func(ctx context.Context, e *replay.Engine, q *query) (any, error) {
		return e.Cancel(ctx, q.path("id"))
	})
	on("POST /api/v1/replays/{id}/resume", func(ctx context.Context, e *replay.Engine, q *query) (any, error) {
		return e.Resume(ctx, q.path("id"))
	})
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
