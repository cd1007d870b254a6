package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/forebay-gateway/forebay/spool"
)

// spool answers what forebay spool asks when the gateway runs.
func (s *server) spool(mux *http.ServeMux) {
	on := func(pattern string, fn func(context.Context, spool.Inspector, *query) (any, error)) {
		mux.HandleFunc(pattern, s.answer(from(s.o.Spool, noSpool, fn)))
	}
	on("GET /api/v1/spool", func(ctx context.Context, in spool.Inspector, _ *query) (any, error) { return in.List(ctx) })
	on("GET /api/v1/spool/segments", func(ctx context.Context, in spool.Inspector, q *query) (any, error) {
		return ask(ctx, q, in.ListSegments, spool.SegmentsQuery{Stream: q.text("stream"), After: q.text("after"), Limit: q.number("limit", 0)})
	})
	on("GET /api/v1/spool/segment", func(ctx context.Context, in spool.Inspector, q *query) (any, error) {
		return ask(ctx, q, in.InspectSegment, spool.SegmentQuery{
			Stream: q.text("stream"), Sequence: q.big("sequence"), Partition: q.number("partition", -1), Limit: q.number("limit", 0),
		})
	})
	on("GET /api/v1/spool/journal", func(ctx context.Context, in spool.Inspector, q *query) (any, error) {
		return ask(ctx, q, in.InspectJournal, spool.JournalQuery{After: q.big("after"), Limit: q.number("limit", 0)})
	})
	on("GET /api/v1/spool/meta", func(ctx context.Context, in spool.Inspector, q *query) (any, error) {
		return ask(ctx, q, in.InspectMeta, spool.MetaQuery{Space: q.text("space"), After: q.text("after"), Limit: q.number("limit", 0)})
	})
	on("GET /api/v1/spool/verify", func(ctx context.Context, in spool.Inspector, q *query) (any, error) {
		v, ok := in.(verifier)
		if stream, seq := q.text("stream"), q.big("sequence"); q.err == nil && ok {
			return v.VerifySegment(ctx, stream, seq)
		}
		return nil, errors.Join(q.err, errors.ErrUnsupported)
	})
	mux.HandleFunc("GET /api/v1/spool/records", s.records)
}

// verifier is an Inspector that can verify a segment in use.
type verifier interface {
	VerifySegment(ctx context.Context, stream string, seq uint64) (spool.VerifyResult, error)
}

var _ verifier = (*spool.Spool)(nil)

func ask[Q, A any](ctx context.Context, q *query, fn func(context.Context, Q) (A, error), what Q) (any, error) {
	if q.err != nil {
		return nil, q.err
	}
	return fn(ctx, what)
}

// records answers with lines: records and gaps, then one that says where to go on, or that this is the end.
func (s *server) records(w http.ResponseWriter, r *http.Request) {
	leave, ok := s.admit(w, r)
	if !ok {
		return
	}
	defer leave()
	in := s.o.Spool()
	if in == nil {
		write(w, statusOf(noSpool), faultOf(noSpool))
		return
	}
	v := newQuery(r)
	q := spool.DumpQuery{
		Stream: v.text("stream"), Partition: v.number("partition", -1), From: spool.Offset(v.big("from")), To: spool.Offset(v.big("to")),
		Since: v.time("since"), Until: v.time("until"), Filter: v.text("filter"), Client: v.text("client"), Expired: v.text("expired") == "true",
		Limit: min(v.number("limit", maxRecords), maxRecords), MaxBytes: maxPage, MaxTime: maxPageTime,
	}
	if at := v.text("at"); at != "" {
		q.At = v.position(at)
	}
	if v.err != nil {
		write(w, statusOf(v.err), faultOf(v.err))
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
		write(w, statusOf(err), faultOf(err))
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
