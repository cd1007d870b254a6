package auth

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMendKeepsWhatCanBeRead(t *testing.T) {
	name := filepath.Join(t.TempDir(), "bans")
	damaged := "# by hand\nclient=\"press-7\" reason=\"stolen\"\nuser=\"ann\nclient=a\x00b\n\naddress=192.0.2.0/24\ngarbage"
	if err := os.WriteFile(name, []byte(damaged), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	cfg.Ban.File = name
	_, err := New(cfg, Options{})
	if err == nil || !strings.Contains(err.Error(), name+":3:") || !strings.Contains(err.Error(), "forebay ban mend "+name) {
		t.Fatalf("a damaged list at the start: %v", err)
	}
	now := time.Date(2026, 11, 30, 1, 2, 3, 0, time.UTC)
	m, err := MendBans(name, now)
	if err != nil {
		t.Fatal(err)
	}
	if m.Kept != 2 || len(m.Faults) != 3 || !strings.HasPrefix(m.Faults[2], name+":7:") || m.Aside != name+".damaged-20261130T010203.000Z" {
		t.Errorf("%+v", m)
	}
	if was, err := os.ReadFile(m.Aside); err != nil || string(was) != damaged {
		t.Errorf("set aside: %q, %v", was, err)
	}
	if is, err := os.ReadFile(name); err != nil || string(is) != "# by hand\nclient=\"press-7\" reason=\"stolen\"\n\naddress=192.0.2.0/24\n" {
		t.Errorf("mended: %q, %v", is, err)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if m, err = MendBans(name, now); err != nil || m.Aside != "" || m.Kept != 2 {
		t.Errorf("nothing to mend: %+v, %v", m, err)
	}
	if _, err := MendBans(name+".missing", now); err == nil {
		t.Error("mended a file that is not there")
	}
}
