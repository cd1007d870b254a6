package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/forebay-gateway/forebay/spool"
)

// ErrConfigured means that the configuration has the route.
var ErrConfigured = errors.New("the configuration has this route: take it out, start the gateway again, then retire it")

// Orphan is what the configuration had once and has no more: its cursors keep records in the spool for nobody. Only an
// operator knows whether somebody has mistyped a name, or whether the records are of no use any more.
type Orphan struct {
	Route   string `json:"route"` // empty: the cursor of the dead letters
	Stream  string `json:"stream"`
	Lag     uint64 `json:"lag_records"` // what it keeps, newest records included
	Bytes   int64  `json:"held_bytes"`  // of segments on disk
	Problem string `json:"problem"`
	Hint    string `json:"hint"`

	cursors []string
}

// Orphaned finds among the cursors of a spool those that cfg has no use for.
func Orphaned(cfg Config, cursors []spool.CursorInfo) []Orphan {
	streams := make(map[string]string)
	for _, r := range cfg.Routes {
		r = r.WithDefaults(cfg.onlyUpstream())
		streams[r.Name] = r.Stream
	}
	byRoute := make(map[string]*Orphan)
	var order []string
	for _, c := range cursors {
		route, isRoute := strings.CutPrefix(c.Name, "route/")
		route, _, _ = strings.Cut(route, "/") // no route has a / in its name
		switch {
		case isRoute && streams[route] == c.Stream:
			continue
		case !isRoute && (c.Name != deadLetterCursor || cfg.deadLetters() == c.Stream):
			continue
		case !isRoute:
			route = ""
		}
		o := byRoute[route]
		if o == nil {
			o = &Orphan{Route: route, Stream: c.Stream}
			o.explain(streams[route])
			byRoute[route] = o
			order = append(order, route)
		}
		o.Lag, o.Bytes = max(o.Lag, c.Lag), max(o.Bytes, c.HeldBytes)
		o.cursors = append(o.cursors, c.Name)
	}
	out := make([]Orphan, len(order))
	for i, route := range order {
		out[i] = *byRoute[route]
	}
	return out
}

// explain says why it is one, and what can be done. now is the stream that a route of that name has today.
func (o *Orphan) explain(now string) {
	retire := fmt.Sprintf("`forebay route retire %s --yes` gives its records up", o.Route)
	switch {
	case o.Route == "":
		o.Problem = "dead letters wait in stream " + o.Stream + ", which bridge.dead_letter_stream does not name any more"
		o.Hint = "set bridge.dead_letter_stream: " + o.Stream + " again, then redrive or purge them (forebay deadletter)"
	case now == "":
		o.Problem = "route " + o.Route + " is not in the configuration any more, and the spool keeps what it has not delivered"
		o.Hint = "add a route of that name again, or " + retire
	default:
		o.Problem = fmt.Sprintf("route %s has read stream %s, and its stream is %s now", o.Route, o.Stream, now)
		o.Hint = "give the route another name, or stop the gateway and " + retire
	}
}

// Orphans are the cursors that no route of the configuration has.
func (b *Bridge) Orphans() []Orphan { return Orphaned(b.cfg, b.source.Cursors()) }

func (b *Bridge) tellOrphans() {
	for _, o := range b.Orphans() {
		b.log.Warn("cursors of nobody keep records in the spool", "route", o.Route, "stream", o.Stream, "problem", o.Problem,
			"lag", o.Lag, "held_bytes", o.Bytes, "hint", o.Hint)
	}
}

// Retire gives up what a route that the configuration does not have keeps in the spool.
func (b *Bridge) Retire(ctx context.Context, route string) (Orphan, error) {
	if !b.enter() {
		return Orphan{}, ErrClosed
	}
	defer b.leave()
	o, err := Retire(ctx, b.cfg, b.source, route)
	if err == nil {
		b.log.Warn("route is retired: what it has not delivered is given up", "route", route, "stream", o.Stream, "records", o.Lag)
	}
	return o, err
}

// Retire forgets the cursors, positions and pauses of a route that cfg does not have, or has for another stream. The records
// are not touched: the spool removes those that nobody waits for in its own time. It returns when that is durable; what it
// was stopped in is finished by doing it again.
func Retire(ctx context.Context, cfg Config, log Log, route string) (Orphan, error) {
	orphans := Orphaned(cfg, log.Cursors())
	i := slices.IndexFunc(orphans, func(o Orphan) bool { return o.Route == route && route != "" })
	switch {
	case i < 0 && slices.ContainsFunc(cfg.Routes, func(r RouteConfig) bool { return r.Name == route }):
		return Orphan{}, fmt.Errorf("%q: %w", route, ErrConfigured)
	case i < 0:
		return Orphan{}, fmt.Errorf("%q: the spool has nothing of it: %w", route, ErrUnknownRoute)
	}
	// The cursors last: while they are there, the route is an orphan that can be retired again.
	if err := dropState(ctx, log, space(route), func(string) bool { return true }); err != nil {
		return orphans[i], err
	}
	if err := dropState(ctx, log, backlogSpace(route), func(string) bool { return true }); err != nil {
		return orphans[i], err
	}
	if err := dropState(ctx, log, pausedSpace, func(key string) bool {
		name, _, _ := strings.Cut(key, "/")
		return name == route
	}); err != nil {
		return orphans[i], err
	}
	if err := dropState(ctx, log, runningSpace, func(key string) bool { return key == route || strings.HasPrefix(key, route+"/") }); err != nil {
		return orphans[i], err
	}
	if err := dropState(ctx, log, activeSpace, func(key string) bool { return key == route }); err != nil {
		return orphans[i], err
	}
	for _, c := range orphans[i].cursors {
		if err := log.DropCursor(ctx, c); err != nil {
			return orphans[i], err
		}
	}
	return orphans[i], nil
}

const dropAtOnce = 500 // keys of one entry, which has to fit into a frame of the journal

func dropState(ctx context.Context, log Log, in string, which func(key string) bool) error {
	var changes []spool.Change
	if err := log.Load(in, func(key string, _ []byte) error {
		if which(key) {
			changes = append(changes, spool.Change{Space: in, Key: key})
		}
		return nil
	}); err != nil {
		return err
	}
	for part := range slices.Chunk(changes, dropAtOnce) {
		done := make(durable, 1)
		if err := log.Append(ctx, spool.Entry{Changes: part, Done: done}); err != nil {
			return err
		}
		if err := done.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// tellStart says where a route that has no cursor yet begins, and how much that is.
func (b *Bridge) tellStart(r RouteConfig, cursor Cursor, partitions int) {
	var records uint64
	for p := range partitions {
		if _, end := b.source.Bounds(r.Stream, p); end > cursor.Position(p) {
			records += uint64(end - cursor.Position(p))
		}
	}
	b.log.Info("route is new", "route", r.Name, "stream", r.Stream, "from", r.From, "records_before_it", records)
}
