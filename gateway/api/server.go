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
	Reload    func(context.Context) (Reloaded, error)
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
	s.spool(mux)
	s.deadLetters(mux)
	s.routes(mux)
	s.downlinks(mux)
	s.bans(mux)
	s.reload(mux)
	s.tiering(mux)
	s.replays(mux)
	return s.audited(mux)
}

type server struct {
	o     Options
	slots chan struct{}
}

// fault is the body of an answer that is none.
type fault struct {
	Error string `json:"error"`
}

// faultOf says what is wrong, without the word for the kind of error: the status says that.
func faultOf(err error) fault {
	return fault{strings.TrimSuffix(err.Error(), ": "+spool.ErrInvalid.Error())}
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

// answer answers with what fn finds out.
func (s *server) answer(fn func(context.Context, *query) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		leave, ok := s.admit(w, r)
		if !ok {
			return
		}
		defer leave()
		ctx, cancel := context.WithTimeout(r.Context(), maxLook)
		defer cancel()
		v, err := fn(ctx, newQuery(r))
		if err != nil {
			write(w, statusOf(err), faultOf(err))
			return
		}
		write(w, http.StatusOK, v)
	}
}

// from asks a part of the gateway, or says that there is none yet: of is nil then, or returns nil.
func from[P comparable](of func() P, absent notOpen, fn func(context.Context, P, *query) (any, error)) func(context.Context, *query) (any, error) {
	return func(ctx context.Context, q *query) (any, error) {
		var part, none P
		if of != nil {
			part = of()
		}
		if part == none {
			return nil, absent
		}
		return fn(ctx, part, q)
	}
}

// notOpen means that a part of the gateway cannot be asked.
type notOpen string

const (
	noSpool     notOpen = "the spool is not open: see /readyz"
	noBridge    notOpen = "the bridge is not open: see /readyz"
	noFront     notOpen = "the MQTT front is not open: see /readyz"
	noReplay    notOpen = "replay is not open: see /readyz"
	noDownlinks notOpen = "the downlinks have not started: see /readyz"
)

func (e notOpen) Error() string { return string(e) }

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
	case errors.As(err, new(notOpen)), errors.Is(err, bridge.ErrClosed), errors.Is(err, downlink.ErrClosed), errors.Is(err, replay.ErrClosed), errors.Is(err, spool.ErrClosed),
		errors.Is(err, context.DeadlineExceeded):
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
	r   *http.Request
	err error
}

func newQuery(r *http.Request) *query { return &query{Values: r.URL.Query(), r: r} }

// path is what stands in the path in the place of {name}.
func (q *query) path(name string) string { return q.r.PathValue(name) }

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
