package bridge

import (
	"errors"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/spooltest"
)

// A spool knows what a configuration has forgotten: each kind of it is found, and nothing else.
func TestOrphansAreWhatTheConfigurationForgot(t *testing.T) {
	s := spooltest.Open(t, spool.StreamConfig{Name: "a"}, spool.StreamConfig{Name: "dead"})
	for name, stream := range map[string]string{
		"route/here": "default", "route/here/keep": "default", "route/gone": "default", "route/gone/keep": "default", "route/gone/backlog/x/keep": "default", "route/here/backlog/y": "default",
		"route/moved": "a", "route/half/keep": "a", deadLetterCursor: "dead", "mqtt-sessions/a": "a", "other": "default",
	} {
		if _, err := s.OpenCursor(t.Context(), name, stream, spool.CursorOptions{Protect: true}); err != nil {
			t.Fatal(err)
		}
	}
	log := FromSpool(s)
	kept := make(durable, 1)
	changes := []spool.Change{
		{Space: space("gone"), Key: "0/t/0", Value: []byte("1 5 3")},
		{Space: backlogSpace("gone"), Key: "x", Value: []byte("1 5 0:1-2")},
		{Space: pausedSpace, Key: "gone", Value: []byte("1 1")},
		{Space: pausedSpace, Key: "gone/t/0", Value: []byte("1 1")},
		{Space: pausedSpace, Key: "goneby", Value: []byte("1 1")},
	}
	if err := s.Append(t.Context(), spool.Entry{Changes: changes, Done: kept}); err != nil {
		t.Fatal(err)
	}
	if err := kept.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Routes: []RouteConfig{{Name: "here"}, {Name: "moved"}, {Name: "fresh"}}, DeadLetterStream: "none"}
	f := func(want ...string) {
		t.Helper()
		got := Orphaned(cfg, log.Cursors())
		if len(got) != len(want) {
			t.Fatalf("%+v, want %q", got, want)
		}
		for i, o := range got {
			if !strings.Contains(o.Route+": "+o.Problem+": "+o.Hint, want[i]) {
				t.Errorf("%+v, want %q", o, want[i])
			}
		}
	}
	f("bridge.dead_letter_stream: dead again", "gone: route gone is not in the configuration", "half: ", "moved: route moved has read stream a, and its stream is default")
	cfg.DeadLetterStream = "dead"
	f("gone", "half", "moved")

	retire := func(route string, want error) {
		t.Helper()
		if _, err := Retire(t.Context(), cfg, log, route); !errors.Is(err, want) {
			t.Errorf("retire %q: %v, want %v", route, err, want)
		}
	}
	retire("here", ErrConfigured)
	retire("nobody", ErrUnknownRoute)
	retire("", ErrUnknownRoute)
	for _, route := range []string{"gone", "moved", "half"} {
		retire(route, nil)
		retire(route, map[string]error{"gone": ErrUnknownRoute, "moved": ErrConfigured, "half": ErrUnknownRoute}[route])
	}
	f()
	left := 0
	for _, in := range []string{space("gone"), backlogSpace("gone"), pausedSpace} {
		if err := log.Load(in, func(key string, _ []byte) error {
			if left++; key != "goneby" {
				t.Errorf("%s of %s is left", key, in)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if left != 1 || len(log.Cursors()) != 6 {
		t.Errorf("%d keys and %+v are left", left, log.Cursors())
	}
}
