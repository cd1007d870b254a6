package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forebay-gateway/forebay/bridge"
	"github.com/forebay-gateway/forebay/bridge/downlink"
	"github.com/forebay-gateway/forebay/gateway/config"
	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool/vfs"
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

// small is a configuration for a test: free ports, a directory that goes, the embedded upstream.
func small(t *testing.T) config.Config {
	t.Helper()
	c := config.DefaultConfig()
	c.Gateway.DataDir = t.TempDir()
	c.Admin.Address = "127.0.0.1:0"
	for i := range c.MQTT.Listeners {
		c.MQTT.Listeners[i].Address = "127.0.0.1:0"
	}
	c.Spool.MaxSize, c.Spool.MinFree = 64*unit.MiB, 0
	c.Spool.Journal.FileSize, c.Spool.Segment.MaxSize = unit.MiB, 4*unit.MiB
	c.Bridge.Embedded.Enabled, c.Bridge.Embedded.Address = true, "127.0.0.1:0"
	c.Bridge.Routes = []bridge.RouteConfig{{Name: "all", Topic: "telemetry"}}
	c.Bridge.Downlinks = []downlink.Config{{Name: "down", Pattern: "commands.*", Topic: "${key}"}}
	return c
}

func TestGatewayRunsAndStops(t *testing.T) {
	c := small(t)
	for range 2 { // the second time on the directory of the first
		g, err := New(c, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if h := g.Health(); h.Ready || h.Status != "starting" {
			t.Errorf("before Run: %+v", h)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.Run(ctx) }()
		select {
		case <-g.Ready():
		case err := <-done:
			t.Fatal(err)
		}
		for _, name := range []string{"admin", "embedded", "tcp", "websocket"} {
			if g.Addr(name) == "" {
				t.Errorf("no address of %s", name)
			}
		}
		if g.Addr("nothing") != "" {
			t.Error("an address of nothing")
		}
		if h := g.Health(); !h.Ready || h.Status != "ok" || h.Gateway != g.ID() || g.ID() == "" {
			t.Errorf("while it runs: %+v", h)
		}
		if families, err := g.reg.Gather(); err != nil || len(families) < 20 {
			t.Errorf("%d metric families, %v", len(families), err)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if h := g.Health(); h.Ready || h.Status != "stopping" {
			t.Errorf("after Run: %+v", h)
		}
	}
}

// A bridge that was closed before it ran is no news beside the fault that closed it.
func TestFailedStartLogsOnlyItsFault(t *testing.T) {
	for range 10 {
		c := small(t)
		c.MQTT.Auth.Password.File = filepath.Join(t.TempDir(), "missing")
		c.MQTT.Auth.Methods = []string{"password"}
		var warned warnings
		g, err := New(c, Options{Logger: slog.New(&warned)})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "missing") {
			t.Errorf("got %v", err)
		}
		if n := warned.ended.Load(); n > 0 {
			t.Fatal("the log says that a part ended with an error")
		}
	}
}

// warnings counts the lines about parts that ended with an error.
type warnings struct{ ended atomic.Int64 }

func (w *warnings) Enabled(context.Context, slog.Level) bool { return true }
func (w *warnings) WithAttrs([]slog.Attr) slog.Handler       { return w }
func (w *warnings) WithGroup(string) slog.Handler            { return w }

func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "part ended with an error" {
		w.ended.Add(1)
	}
	return nil
}

func TestGatewayGivesBackWhatItTookWhenAPartCannotStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	c := small(t)
	free := c.MQTT.Listeners[0].Address
	c.MQTT.Listeners[0].Address = taken.Addr().String()
	for i := range 2 {
		g, err := New(c, Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.Run(ctx) }()
		if i == 0 {
			if err := <-done; err == nil || !strings.Contains(err.Error(), "start mqtt: ") {
				t.Errorf("got %v", err)
			}
			stop()
			c.MQTT.Listeners[0].Address = free
			continue
		}
		select {
		case <-g.Ready(): // the directory's locks are free again
			stop()
			err = <-done
		case err = <-done:
			stop()
		}
		if err != nil {
			t.Error(err)
		}
	}
}

func TestRunTellsOfAStopThatIsNotComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		p, _ := fake(&d, "bridge")
		p.run, p.stop = nil, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		g, err := New(small(t), Options{})
		if err != nil {
			t.Fatal(err)
		}
		g.life = newLifecycle(g.log, time.Minute, []part{p})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.Run(ctx) }()
		<-g.Ready()
		stop()
		if err := <-done; !errors.Is(err, ErrStopIncomplete) || !strings.Contains(err.Error(), "stop bridge") {
			t.Errorf("got %v", err)
		}
	})
}

// A signal while it starts is a stop like any other.
func TestRunToldToStopWhileItStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		p, _ := fake(&d, "spool")
		p.run, p.start = nil, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		g, err := New(small(t), Options{})
		if err != nil {
			t.Fatal(err)
		}
		g.life = newLifecycle(g.log, time.Minute, []part{p})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.Run(ctx) }()
		synctest.Wait()
		stop()
		if err := <-done; err != nil {
			t.Errorf("got %v", err)
		}
	})
}

func TestNewRefusesABadConfig(t *testing.T) {
	c := small(t)
	c.Gateway.DataDir = ""
	if _, err := New(c, Options{}); err == nil || !strings.Contains(err.Error(), "gateway.data_dir") {
		t.Errorf("got %v", err)
	}
}

// What is wrong with the directory is said before any port is taken, and nothing is left in it.
func TestRunTellsOfADirectoryThatItCannotHave(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	f := func(dir, want string) {
		t.Helper()
		c := small(t)
		c.Gateway.DataDir = dir
		c.Admin.Address = taken.Addr().String()
		g, err := New(c, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "admin") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f(filepath.Join(file, "data"), "gateway: gateway.data_dir: mkdir")

	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "spool"), 0o750); err != nil {
		t.Fatal(err)
	}
	lock, err := vfs.OS.Lock(filepath.Join(dir, "spool", "LOCK"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	f(dir, "in use by another process")
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 1 {
		t.Errorf("left behind: %q", left)
	}
}
