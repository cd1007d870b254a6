package spool

import (
	"maps"
	"slices"
	"testing"
)

// What meta.db does not have yet, because nothing can be written, is told with what it has, in order: a gateway starts on a
// full disk. spool/crashtest has the disk.
func TestLoadOverUnwrittenChanges(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	s := mustOpen(t, cfg, Options{})
	change := func(key, value string) {
		t.Helper()
		c := Change{Space: "a", Key: key, Value: []byte(value)}
		if value == "" {
			c.Value = nil
		}
		put(t, s, Entry{Changes: []Change{c, {Space: "other", Key: key, Value: []byte("x")}}})
	}
	for _, key := range []string{"b", "d", "f", "h"} {
		change(key, "old")
	}
	if err := s.materialise(true); err != nil {
		t.Fatal(err)
	}
	change("a", "new")
	change("d", "new")
	change("f", "")
	change("i", "new")
	change("j", "first")
	change("j", "")

	got := map[string]string{}
	var order []string
	if err := s.loadOver("a", func(key string, value []byte) error {
		got[key] = string(value)
		order = append(order, key)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"a": "new", "b": "old", "d": "new", "h": "old", "i": "new"}
	if !maps.Equal(got, want) || !slices.IsSorted(order) {
		t.Errorf("got %v in the order %v, want %v", got, order, want)
	}
	n := 0
	if err := s.loadOver("a", func(string, []byte) error {
		n++
		return errStop
	}); err != nil || n != 1 {
		t.Errorf("told %d keys after the end: %v", n, err)
	}
}
