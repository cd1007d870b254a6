package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/bridge"
	"github.com/forebay-gateway/forebay/bridge/downlink"
	"github.com/forebay-gateway/forebay/bridge/replay"
	"github.com/forebay-gateway/forebay/gateway/admin"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/audit"
	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering"
	"github.com/forebay-gateway/forebay/tiering/backup"
)

// Options are what the program wires.
type Options struct {
	Token  string                 // what Authorization: Bearer must carry; without one nobody is answered
	Spool  func() spool.Inspector // nil while there is none
	Bridge func() *bridge.Bridge  // nil while there is none
	Front  func() *mqtt.Server    // nil while there is none
	Audit  func(audit.Event)      // of requests that change something; nil records none
	Tier   func() *tiering.Tier   // likewise
	Backup Backup
	Replay func() *replay.Engine // nil while there is none

	Downlinks func() *downlink.Engine // nil while there is none
}

const (
	atOnce      = 4                // requests that run; each may hold maxPage
	maxPage     = 4 << 20          // of records in memory
	maxPageTime = 3 * time.Second  // of looking for records
	maxRecords  = 10_000           // of a page
	maxLook     = 20 * time.Second // of all else: the admin listener writes for 30 s at most
)

// New is the handler of everything below /api/v1/.
func New(o Options) http.Handler {
	s := &server{o: o, slots: make(chan struct{}, atOnce)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/spool", s.answer(func(ctx context.Context, in spool.Inspector, _ *query) (any, error) { return in.List(ctx) }))
	mux.HandleFunc("GET /api/v1/spool/segments", s.answer(func(ctx context.Context, in spool.Inspector, q *query) (any, error) {
		return ask(ctx, q, in.ListSegments, spool.SegmentsQuery{Stream: q.text("stream"), After: q.text("after"), Limit: q.number("limit", 0)})
	}))
	mux.HandleFunc("GET /api/v1/spool/segment", s.answer(func(ctx context.Context, in spool.Inspector, q *query) (any, error) {
		return ask(ctx, q, in.InspectSegment, spool.SegmentQuery{
			Stream: q.text("stream"), Sequence: q.big("sequence"), Partition: q.number("partition", -1), Limit: q.number("limit", 0),
		})
	}))
	mux.HandleFunc("GET /api/v1/spool/journal", s.answer(func(ctx context.Context, in spool.Inspector, q *query) (any, error) {
		return ask(ctx, q, in.InspectJournal, spool.JournalQuery{After: q.big("after"), Limit: q.number("limit", 0)})
	}))
	mux.HandleFunc("GET /api/v1/spool/meta", s.answer(func(ctx context.Context, in spool.Inspector, q *query) (any, error) {
		return ask(ctx, q, in.InspectMeta, spool.MetaQuery{Space: q.text("space"), After: q.text("after"), Limit: q.number("limit", 0)})
	}))
	mux.HandleFunc("GET /api/v1/spool/verify", s.answer(func(ctx context.Context, in spool.Inspector, q *query) (any, error) {
		v, ok := in.(verifier)
		if stream, seq := q.text("stream"), q.big("sequence"); q.err == nil && ok {
			return v.VerifySegment(ctx, stream, seq)
		}
		return nil, errors.Join(q.err, errors.ErrUnsupported)
	}))
	mux.HandleFunc("GET /api/v1/spool/records", s.records)
	s.deadLetters(mux)
	s.routes(mux)
	s.downlinks(mux)
	s.bans(mux)
	s.reload(mux)
	s.tiering(mux)
	s.replays(mux)
	return s.audited(mux)
}

// verifier is an Inspector that can verify a segment in use.
type verifier interface {
	VerifySegment(ctx context.Context, stream string, seq uint64) (spool.VerifyResult, error)
}

var _ verifier = (*spool.Spool)(nil)

type server struct {
	o     Options
	slots chan struct{}
}

// fault is the body of an answer that is none.
type fault struct {
	Error string `json:"error"`
}

// enter lets a request for the spool in, or answers it.
func (s *server) enter(w http.ResponseWriter, r *http.Request) (in spool.Inspector, leave func(), ok bool) {
	if leave, ok = s.admit(w, r); !ok {
		return nil, nil, false
	}
	if in = s.o.Spool(); in == nil {
		leave()
		write(w, http.StatusServiceUnavailable, fault{"the spool is not open: see /readyz"})
		return nil, nil, false
	}
	return in, leave, true
}

// admit lets a request in, or answers it.
func (s *server) admit(w http.ResponseWriter, r *http.Request) (leave func(), ok bool) {
	if !admin.Authorized(r, s.o.Token) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		write(w, http.StatusUnauthorized, fault{"want the token of the file admin_token in gateway.data_dir as Authorization: Bearer"})
		return nil, false
	}
	select {
	case s.slots <- struct{}{}:
		return func() { <-s.slots }, true
	default:
		w.Header().Set("Retry-After", "1")
		write(w, http.StatusServiceUnavailable, fault{"other requests are running"})
		return nil, false
	}
}

func (s *server) answer(fn func(context.Context, spool.Inspector, *query) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		in, leave, ok := s.enter(w, r)
		if !ok {
			return
		}
		defer leave()
		ctx, cancel := context.WithTimeout(r.Context(), maxLook)
		defer cancel()
		v, err := fn(ctx, in, &query{Values: r.URL.Query()})
		if err != nil {
			write(w, statusOf(err), fault{err.Error()})
			return
		}
		write(w, http.StatusOK, v)
	}
}

func ask[Q, A any](ctx context.Context, q *query, fn func(context.Context, Q) (A, error), what Q) (any, error) {
	if q.err != nil {
		return nil, q.err
	}
	return fn(ctx, what)
}

// records answers with lines: records and gaps, then one that says where to go on, or that this is the end.
func (s *server) records(w http.ResponseWriter, r *http.Request) {
	in, leave, ok := s.enter(w, r)
	if !ok {
		return
	}
	defer leave()
	v := &query{Values: r.URL.Query()}
	q := spool.DumpQuery{
		Stream: v.text("stream"), Partition: v.number("partition", -1), From: spool.Offset(v.big("from")), To: spool.Offset(v.big("to")),
		Since: v.time("since"), Until: v.time("until"), Filter: v.text("filter"), Client: v.text("client"), Expired: v.text("expired") == "true",
		Limit: min(v.number("limit", maxRecords), maxRecords), MaxBytes: maxPage, MaxTime: maxPageTime,
	}
	if at := v.text("at"); at != "" {
		q.At = v.position(at)
	}
	if v.err != nil {
		write(w, statusOf(v.err), fault{v.err.Error()})
		return
	}
	var page bytes.Buffer
	enc := json.NewEncoder(&page)
	enc.SetEscapeHTML(false)
	ctx, cancel := context.WithTimeout(r.Context(), maxLook)
	defer cancel()
	next, err := in.Dump(ctx, q, func(i spool.DumpItem) error { return enc.Encode(i.Line()) })
	if err == nil {
		err = enc.Encode(pageEnd{End: next == nil, Next: next})
	}
	if err != nil {
		write(w, statusOf(err), fault{err.Error()})
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(page.Bytes())
}

// pageEnd is the last line of a page of records: without it, something was cut off.
type pageEnd struct {
	End  bool                `json:"end"`
	Next *spool.DumpPosition `json:"next,omitempty"`
}

var errQuery = errors.New("query")

func statusOf(err error) int {
	switch {
	case errors.Is(err, errQuery), errors.Is(err, spool.ErrInvalid), errors.Is(err, mqtt.ErrReload):
		return http.StatusBadRequest
	case errors.Is(err, spool.ErrUnknownStream), errors.Is(err, spool.ErrUnknownSegment),
		errors.Is(err, bridge.ErrNoDeadLetters), errors.Is(err, bridge.ErrUnknownDeadLetter), errors.Is(err, bridge.ErrUnknownRoute), errors.Is(err, ErrNoTiering),
		errors.Is(err, bridge.ErrUnknownUpstream), errors.Is(err, replay.ErrUnknown), errors.Is(err, downlink.ErrUnknown):
		return http.StatusNotFound
	case errors.Is(err, backup.ErrRunning), errors.Is(err, bridge.ErrBusy), errors.Is(err, bridge.ErrConfigured), errors.Is(err, bridge.ErrCannotMove),
		errors.Is(err, replay.ErrBusy), errors.Is(err, replay.ErrState):
		return http.StatusConflict
	case errors.Is(err, bridge.ErrClosed), errors.Is(err, replay.ErrClosed), errors.Is(err, spool.ErrClosed), errors.Is(err, context.DeadlineExceeded):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

func write(w http.ResponseWriter, status int, v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		status = http.StatusInternalServerError
		b.Reset()
		b.WriteString(`{"error":"answer cannot be written"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // who asked has gone: nobody is left to tell
}

// query reads a request's parameters and keeps the first fault.
type query struct {
	url.Values
	err error
}

func (q *query) text(name string) string { return q.Get(name) }

func (q *query) fail(name, want string) {
	if q.err == nil {
		q.err = &queryError{name, q.Get(name), want}
	}
}

type queryError struct{ name, got, want string }

func (e *queryError) Error() string {
	return "query: " + e.name + ": " + strconv.Quote(e.got) + ": want " + e.want
}
func (e *queryError) Is(target error) bool { return target == errQuery }

func (q *query) number(name string, otherwise int) int {
	if !q.Has(name) {
		return otherwise
	}
	n, err := strconv.ParseInt(q.Get(name), 10, 32)
	if err != nil {
		q.fail(name, "a number")
	}
	return int(n)
}

func (q *query) big(name string) uint64 {
	if !q.Has(name) {
		return 0
	}
	n, err := strconv.ParseUint(q.Get(name), 10, 64)
	if err != nil {
		q.fail(name, "a number that is not negative")
	}
	return n
}

func (q *query) time(name string) time.Time {
	if !q.Has(name) {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, q.Get(name))
	if err != nil {
		q.fail(name, "a time like 2026-01-31T12:00:00Z")
	}
	return t
}

func (q *query) position(s string) *spool.DumpPosition {
	p, o, ok := strings.Cut(s, ":")
	n, err := strconv.ParseUint(p, 10, 16)
	off, oerr := strconv.ParseUint(o, 10, 64)
	if !ok || err != nil || oerr != nil {
		q.fail("at", "partition:offset")
	}
	return &spool.DumpPosition{Partition: int(n), Offset: spool.Offset(off)}
}
