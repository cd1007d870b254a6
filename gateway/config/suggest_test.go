package config

import (
	"strings"
	"testing"
)

func TestDistance(t *testing.T) {
	f := func(a, b string, want int) {
		t.Helper()
		if got := distance(a, b); got != want {
			t.Errorf("distance(%q, %q) = %d, want %d", a, b, got, want)
		}
		if got := distance(b, a); got != want {
			t.Errorf("distance(%q, %q) = %d, want %d", b, a, got, want)
		}
	}
	f("", "", 0)
	f("sync", "sync", 0)
	f("", "sync", 4)
	f("fsnyc", "fsync", 1) // neighbours swapped
	f("kitten", "sitting", 3)
}

func TestNearest(t *testing.T) {
	words := []string{"max_size", "min_free", "sync", "sync_interval", "streams"}
	f := func(word, want string) {
		t.Helper()
		if got := Nearest(word, words); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
	f("maxSize", "max_size")
	f("max-size", "max_size")
	f("snyc", "sync")
	f("stream", "streams")
	f("sync_intervall", "sync_interval")
	f("brokers", "")
	f("x", "")
}

func TestUnknownKeyMayStandOneLevelDown(t *testing.T) {
	f := func(section, name, want string) {
		t.Helper()
		if got := unknown(Keys().child(section), name); got != want && !strings.HasPrefix(got, want) {
			t.Errorf("%s.%s: %q, want %q", section, name, got, want)
		}
	}
	f("spool", "segment_size", "unknown key (did you mean segment.max_size?)")
	f("spool", "journal_files", "unknown key (did you mean journal.files?)")
	f("spool", "colour", "unknown key: allowed are ")
}
