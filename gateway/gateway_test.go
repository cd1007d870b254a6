package gateway

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestIdentityIsMadeOnce(t *testing.T) {
	dir := t.TempDir()
	first, err := identity(dir)
	if err != nil || !madeID.MatchString(first) {
		t.Fatalf("got %q, %v", first, err)
	}
	if again, err := identity(dir); err != nil || again != first {
		t.Errorf("got %q, %v, want %q", again, err, first)
	}
	if other, err := identity(t.TempDir()); err != nil || other == first {
		t.Errorf("another directory has %q, %v", other, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 1 {
		t.Errorf("files left behind: %q", left)
	}
}

func TestIdentityRefusesADamagedFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, idFile), []byte("forebay-\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := identity(dir); err == nil || !strings.Contains(err.Error(), "set gateway.id") {
		t.Errorf("got %v", err)
	}
}
