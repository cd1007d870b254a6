package api

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/auth"
)

// Bans is the list of who is kept out.
type Bans struct {
	Bans []auth.Ban `json:"bans"`
}

// Unbanned says how many bans were taken away.
type Unbanned struct {
	Removed int `json:"removed"`
}

// bans serves
//
//	GET    /api/v1/bans     those in force
//	POST   /api/v1/bans     one more; parameters client, user and address, at least one of them, until and reason. Who is in is ended.
//	DELETE /api/v1/bans     takes those away that have exactly these conditions
func (s *server) bans(mux *http.ServeMux) {
	on := func(pattern string, fn func(context.Context, *mqtt.Server, *query) (any, error)) {
		mux.HandleFunc(pattern, s.answer(from(s.o.Front, noFront, fn)))
	}
	on("GET /api/v1/bans", func(_ context.Context, f *mqtt.Server, _ *query) (any, error) {
		return Bans{append([]auth.Ban{}, f.Bans()...)}, nil
	})
	on("POST /api/v1/bans", func(_ context.Context, f *mqtt.Server, q *query) (any, error) {
		b := q.ban()
		if q.err != nil {
			return nil, q.err
		}
		return b, f.Ban(b)
	})
	on("DELETE /api/v1/bans", func(_ context.Context, f *mqtt.Server, q *query) (any, error) {
		b := q.ban()
		if q.err != nil {
			return nil, q.err
		}
		n, err := f.Unban(b)
		return Unbanned{n}, err
	})
}

// ban reads the parameters of a ban.
func (q *query) ban() auth.Ban {
	b := auth.Ban{Client: q.text("client"), User: q.text("user"), Until: q.time("until"), Reason: q.text("reason")}
	if s := q.text("address"); s != "" {
		var err error
		if b.Address, err = auth.ParseAddress(s); err != nil {
			q.fail("address", "an address or a network such as 192.0.2.0/24")
		}
	}
	if err := b.Validate(); err != nil && q.err == nil {
		q.err = &queryError{"client", b.Client, err.Error()}
	}
	return b
}

func banValues(b auth.Ban) url.Values {
	v := values{}
	v.text("client", b.Client)
	v.text("user", b.User)
	if b.Address.IsValid() {
		v.text("address", b.Address.String())
	}
	if !b.Until.IsZero() {
		v.text("until", b.Until.UTC().Format(time.RFC3339))
	}
	v.text("reason", b.Reason)
	return url.Values(v)
}

// Bans lists who is kept out.
func (c *Client) Bans(ctx context.Context) (Bans, error) {
	return call[Bans](ctx, c, http.MethodGet, "/bans", nil)
}

// Ban keeps somebody out and ends his connections.
func (c *Client) Ban(ctx context.Context, b auth.Ban) (auth.Ban, error) {
	return call[auth.Ban](ctx, c, http.MethodPost, "/bans", banValues(b))
}

// Unban takes the bans with the conditions of b away.
func (c *Client) Unban(ctx context.Context, b auth.Ban) (Unbanned, error) {
	return call[Unbanned](ctx, c, http.MethodDelete, "/bans", banValues(b))
}
