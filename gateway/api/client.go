package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// Client asks a running gateway.
type Client struct {
	Address string // host:port of the admin listener
	Token   string
	HTTP    *http.Client // nil: one without a proxy
	TLS     bool         // https, by an HTTP client that knows whom to trust
}

var _ spool.Inspector = (*Client)(nil)

var direct = &http.Client{Transport: &http.Transport{Proxy: nil, IdleConnTimeout: 10 * time.Second}, Timeout: time.Minute}

// ErrRefused means that the gateway does not take the token.
var ErrRefused = errors.New("the gateway refuses the token")

// Refusal is why a gateway that was asked, and that took the token, does not do it.
type Refusal struct {
	Address string
	Reason  string
}

func (r *Refusal) Error() string { return fmt.Sprintf("gateway at %s: %s", r.Address, r.Reason) }

// get asks about the spool.
func (c *Client) get(ctx context.Context, path string, q url.Values) (io.ReadCloser, error) {
	return c.do(ctx, http.MethodGet, "/spool"+path, q)
}

// do asks once, and again while the gateway is busy with others. The caller closes the body.
func (c *Client) do(ctx context.Context, method, path string, q url.Values) (io.ReadCloser, error) {
	h := c.HTTP
	if h == nil {
		h = direct
	}
	scheme := "http"
	if c.TLS {
		scheme = "https"
	}
	u := url.URL{Scheme: scheme, Host: c.Address, RawPath: "/api/v1" + path, RawQuery: q.Encode()}
	var err error
	if u.Path, err = url.PathUnescape(u.RawPath); err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+c.Token)
		r, err := h.Do(req)
		if err != nil {
			return nil, err
		}
		if r.StatusCode == http.StatusOK {
			return r.Body, nil
		}
		busy := r.Header.Get("Retry-After") != ""
		err = c.told(r)
		if !busy || try >= 20 {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// told is the error of an answer: a Refusal when it is one of a gateway.
func (c *Client) told(r *http.Response) error {
	defer r.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(r.Body, 64<<10))
	var f fault
	switch {
	case json.Unmarshal(b, &f) != nil || f.Error == "":
		return fmt.Errorf("gateway at %s: %s", c.Address, r.Status)
	case r.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("gateway at %s: %w: %s", c.Address, ErrRefused, f.Error)
	}
	return &Refusal{Address: c.Address, Reason: strings.TrimSuffix(f.Error, ": "+spool.ErrInvalid.Error())}
}

func fetch[A any](ctx context.Context, c *Client, path string, q url.Values) (a A, err error) {
	return call[A](ctx, c, http.MethodGet, "/spool"+path, q)
}

func call[A any](ctx context.Context, c *Client, method, path string, q url.Values) (a A, err error) {
	body, err := c.do(ctx, method, path, q)
	if err != nil {
		return a, err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&a); err != nil {
		return a, fmt.Errorf("gateway at %s: answer: %w", c.Address, err)
	}
	return a, nil
}

// List implements spool.Inspector.
func (c *Client) List(ctx context.Context) (spool.Listing, error) {
	return fetch[spool.Listing](ctx, c, "", nil)
}

// ListSegments implements spool.Inspector.
func (c *Client) ListSegments(ctx context.Context, q spool.SegmentsQuery) (spool.SegmentsPage, error) {
	v := values{}
	v.text("stream", q.Stream)
	v.text("after", q.After)
	v.number("limit", q.Limit, 0)
	return fetch[spool.SegmentsPage](ctx, c, "/segments", url.Values(v))
}

// InspectSegment implements spool.Inspector.
func (c *Client) InspectSegment(ctx context.Context, q spool.SegmentQuery) (spool.SegmentDetail, error) {
	v := values{}
	v.text("stream", q.Stream)
	v.text("sequence", strconv.FormatUint(q.Sequence, 10))
	v.number("partition", q.Partition, -1)
	v.number("limit", q.Limit, 0)
	return fetch[spool.SegmentDetail](ctx, c, "/segment", url.Values(v))
}

// InspectJournal implements spool.Inspector.
func (c *Client) InspectJournal(ctx context.Context, q spool.JournalQuery) (spool.JournalDetail, error) {
	v := values{}
	v.big("after", q.After)
	v.number("limit", q.Limit, 0)
	return fetch[spool.JournalDetail](ctx, c, "/journal", url.Values(v))
}

// InspectMeta implements spool.Inspector.
func (c *Client) InspectMeta(ctx context.Context, q spool.MetaQuery) (spool.MetaDetail, error) {
	v := values{}
	v.text("space", q.Space)
	v.text("after", q.After)
	v.number("limit", q.Limit, 0)
	return fetch[spool.MetaDetail](ctx, c, "/meta", url.Values(v))
}

// VerifySegment has the gateway verify a segment that it has in use.
func (c *Client) VerifySegment(ctx context.Context, stream string, seq uint64) (spool.VerifyResult, error) {
	v := values{}
	v.text("stream", stream)
	v.text("sequence", strconv.FormatUint(seq, 10))
	return fetch[spool.VerifyResult](ctx, c, "/verify", url.Values(v))
}

// Dump implements spool.Inspector. It asks for page after page; what comes meanwhile is part of it.
func (c *Client) Dump(ctx context.Context, q spool.DumpQuery, fn func(spool.DumpItem) error) (*spool.DumpPosition, error) {
	left := q.Limit
	for at := q.At; ; {
		v := values{}
		v.text("stream", q.Stream)
		v.number("partition", q.Partition, -1)
		v.big("from", uint64(q.From))
		v.big("to", uint64(q.To))
		v.time("since", q.Since)
		v.time("until", q.Until)
		v.text("filter", q.Filter)
		v.text("client", q.Client)
		v.number("limit", left, 0)
		if q.Expired {
			v.text("expired", "true")
		}
		if at != nil {
			v.text("at", fmt.Sprintf("%d:%d", at.Partition, at.Offset))
		}
		next, n, err := c.page(ctx, url.Values(v), fn)
		if err != nil || next == nil {
			return nil, err
		}
		at = next
		if left > 0 {
			if left -= n; left <= 0 {
				return next, nil
			}
		}
	}
}

// page hands on one page of records.
func (c *Client) page(ctx context.Context, v url.Values, fn func(spool.DumpItem) error) (next *spool.DumpPosition, records int, err error) {
	body, err := c.get(ctx, "/records", v)
	if err != nil {
		return nil, 0, err
	}
	defer body.Close()
	for r := bufio.NewReaderSize(body, 64<<10); ; {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return nil, records, fmt.Errorf("gateway at %s: answer was cut off: %w", c.Address, err)
		}
		if bytes.HasPrefix(line, []byte(`{"end":`)) {
			var end pageEnd
			err := json.Unmarshal(line, &end)
			return end.Next, records, err
		}
		var l spool.DumpLine
		if err := json.Unmarshal(line, &l); err != nil {
			return nil, records, fmt.Errorf("gateway at %s: answer: %w", c.Address, err)
		}
		i, err := l.Item()
		if err != nil {
			return nil, records, err
		}
		if i.Record != nil {
			records++
		}
		if err := fn(i); err != nil {
			return nil, records, err
		}
	}
}

// values are a request's parameters, without those that say nothing.
type values url.Values

func (v values) text(name, s string) {
	if s != "" {
		url.Values(v).Set(name, s)
	}
}

func (v values) number(name string, n, otherwise int) {
	if n != otherwise {
		v.text(name, strconv.Itoa(n))
	}
}

func (v values) big(name string, n uint64) {
	if n != 0 {
		v.text(name, strconv.FormatUint(n, 10))
	}
}

func (v values) time(name string, t time.Time) {
	if !t.IsZero() {
		v.text(name, t.UTC().Format(time.RFC3339Nano))
	}
}
