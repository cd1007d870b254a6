package api

import (
	"context"
	"net/http"
	"net/url"

	"github.com/forebay-gateway/forebay/bridge"
)

// deadLetters serves
//
//	GET  /api/v1/deadletters            a page; parameters: route, reason, filter, client, since, until, limit, at
//	GET  /api/v1/deadletters/{id}       one, with its record
//	POST /api/v1/deadletters/redrive    a page is sent again; the same parameters, id, and dry_run=true
//	POST /api/v1/deadletters/purge      a page is given up; the same
//
// A page names where the next one begins; it is the caller who goes on, and sees the progress.
func (s *server) deadLetters(mux *http.ServeMux) {
	type work = func(*bridge.DeadLetters, context.Context, bridge.DeadLetterQuery, bool) (bridge.DeadLetterWork, error)
	on := func(pattern string, fn func(context.Context, *bridge.DeadLetters, bridge.DeadLetterQuery, *query) (any, error)) {
		mux.HandleFunc(pattern, s.answer(from(s.o.Bridge, noBridge, func(ctx context.Context, b *bridge.Bridge, q *query) (any, error) {
			selected := letterQuery(q)
			if q.err != nil {
				return nil, q.err
			}
			d := b.DeadLetters()
			if d == nil {
				return nil, bridge.ErrNoDeadLetters
			}
			return fn(ctx, d, selected, q)
		})))
	}
	on("GET /api/v1/deadletters", func(ctx context.Context, d *bridge.DeadLetters, q bridge.DeadLetterQuery, _ *query) (any, error) {
		return d.List(ctx, q)
	})
	on("GET /api/v1/deadletters/{id}", func(ctx context.Context, d *bridge.DeadLetters, _ bridge.DeadLetterQuery, q *query) (any, error) {
		return d.Show(ctx, q.path("id"))
	})
	for name, fn := range map[string]work{"redrive": (*bridge.DeadLetters).Redrive, "purge": (*bridge.DeadLetters).Purge} {
		on("POST /api/v1/deadletters/"+name, func(ctx context.Context, d *bridge.DeadLetters, selected bridge.DeadLetterQuery, q *query) (any, error) {
			return fn(d, ctx, selected, q.text("dry_run") == "true")
		})
	}
}

func letterQuery(q *query) bridge.DeadLetterQuery {
	return bridge.DeadLetterQuery{
		ID: q.text("id"), Route: q.text("route"), Reason: q.text("reason"), Filter: q.text("filter"), ClientID: q.text("client"),
		Since: q.time("since"), Until: q.time("until"), At: q.text("at"), Limit: q.number("limit", 0),
	}
}

func letterValues(q bridge.DeadLetterQuery) values {
	v := values{}
	v.text("id", q.ID)
	v.text("route", q.Route)
	v.text("reason", q.Reason)
	v.text("filter", q.Filter)
	v.text("client", q.ClientID)
	v.time("since", q.Since)
	v.time("until", q.Until)
	v.text("at", q.At)
	v.number("limit", q.Limit, 0)
	return v
}

// DeadLetters returns a page.
func (c *Client) DeadLetters(ctx context.Context, q bridge.DeadLetterQuery) (bridge.DeadLetterPage, error) {
	return call[bridge.DeadLetterPage](ctx, c, http.MethodGet, "/deadletters", url.Values(letterValues(q)))
}

// DeadLetter returns one with its record.
func (c *Client) DeadLetter(ctx context.Context, id string) (bridge.DeadLetter, error) {
	return call[bridge.DeadLetter](ctx, c, http.MethodGet, "/deadletters/"+url.PathEscape(id), nil)
}

// Redrive sends a page of dead letters again.
func (c *Client) Redrive(ctx context.Context, q bridge.DeadLetterQuery, dry bool) (bridge.DeadLetterWork, error) {
	return c.letterWork(ctx, "redrive", q, dry)
}

// Purge gives up a page of dead letters.
func (c *Client) Purge(ctx context.Context, q bridge.DeadLetterQuery, dry bool) (bridge.DeadLetterWork, error) {
	return c.letterWork(ctx, "purge", q, dry)
}

func (c *Client) letterWork(ctx context.Context, what string, q bridge.DeadLetterQuery, dry bool) (bridge.DeadLetterWork, error) {
	v := letterValues(q)
	if dry {
		v.text("dry_run", "true")
	}
	return call[bridge.DeadLetterWork](ctx, c, http.MethodPost, "/deadletters/"+what, url.Values(v))
}
