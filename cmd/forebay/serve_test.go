package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The test binary is the real program when it is told so: signals and exit codes belong to a process.
const beForebay = "FOREBAY_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(beForebay) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// child is a running forebay.
type child struct {
	t   *testing.T
	cmd *exec.Cmd

	mu    sync.Mutex
	log   bytes.Buffer
	lines chan map[string]any
}

// patience is for a machine that is busy with other tests; nothing waits for it to pass.
const patience = 60 * time.Second

// serveChild starts forebay serve on free ports with a directory of its own.
func serveChild(t *testing.T, dir string, args ...string) *child {
	t.Helper()
	return serveWith(t, dir, "", args...)
}

// serveWith is serveChild with more configuration.
func serveWith(t *testing.T, dir, more string, args ...string) *child {
	t.Helper()
	config := filepath.Join(dir, "forebay.yaml")
	text := fmt.Sprintf(`
gateway: {data_dir: %q, stop_timeout: 20s}
log: {format: json}
admin: {address: "127.0.0.1:0"}
mqtt:
  listeners:
    - {name: tcp, type: tcp, address: "127.0.0.1:0"}
    - {name: websocket, type: websocket, address: "127.0.0.1:0", path: /mqtt}
spool:
  max_size: 64MiB
  min_free: 0
  journal: {file_size: 1MiB}
  segment: {max_size: 4MiB}
`, filepath.Join(dir, "data")) + more
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, lines: make(chan map[string]any, 1000)}
	c.cmd = exec.Command(os.Args[0], append([]string{"serve", "--config", config}, args...)...)
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "FOREBAY_") }) // of the tests, no keys
	c.cmd.Env = append(env, beForebay+"=1")
	stderr, err := c.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go c.read(stderr)
	t.Cleanup(func() { _ = c.cmd.Process.Kill() })
	return c
}

func (c *child) read(r io.Reader) {
	defer close(c.lines)
	for s := bufio.NewScanner(r); s.Scan(); {
		c.mu.Lock()
		c.log.WriteString(s.Text() + "\n")
		c.mu.Unlock()
		line := map[string]any{}
		if json.Unmarshal(s.Bytes(), &line) == nil {
			c.lines <- line
		}
	}
}

func (c *child) output() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.String()
}

// until waits for a message in the log.
func (c *child) until(message string) map[string]any {
	c.t.Helper()
	late := time.After(patience)
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				c.t.Fatalf("forebay ended before %q:\n%s", message, c.output())
			}
			if line["msg"] == message {
				return line
			}
		case <-late:
			c.t.Fatalf("no %q in the log:\n%s", message, c.output())
		}
	}
}

func (c *child) signal(s os.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// exit waits for the end of the process and returns its exit code.
func (c *child) exit() int {
	c.t.Helper()
	for range c.lines { // until the pipe is closed, as Wait must come after the last read
	}
	var code *exec.ExitError
	if err := c.cmd.Wait(); err != nil && !errors.As(err, &code) {
		c.t.Fatal(err)
	}
	return c.cmd.ProcessState.ExitCode()
}

// stop ends it in order.
func (c *child) stop() {
	c.t.Helper()
	c.signal(syscall.SIGTERM)
	if code := c.exit(); code != exitOK {
		c.t.Errorf("exit code %d:\n%s", code, c.output())
	}
}

// listeners waits until forebay serves and returns its addresses by listener.
func (c *child) listeners() map[string]string {
	c.t.Helper()
	out := map[string]string{}
	for name, addr := range c.until("serving")["listeners"].(map[string]any) {
		out[name] = addr.(string)
	}
	return out
}

func status(t *testing.T, url string) (int, string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

func TestServeStopsInOrderOnSignal(t *testing.T) {
	for _, s := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		c := serveChild(t, t.TempDir())
		addrs := c.listeners()
		for _, path := range []string{"/healthz", "/readyz"} {
			if code, body := status(t, "http://"+addrs["admin"]+path); code != 200 || !strings.Contains(body, `"ready": true`) {
				t.Errorf("%s: %d %s", path, code, body)
			}
		}
		if _, body := status(t, "http://"+addrs["admin"]+"/metrics"); !strings.Contains(body, "forebay_gateway_ready 1") ||
			!strings.Contains(body, "forebay_build_info{") || !strings.Contains(body, "process_open_fds") {
			t.Errorf("metrics: %.2000s", body)
		}
		for _, name := range []string{"tcp", "websocket"} {
			conn, err := net.Dial("tcp", addrs[name])
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			defer conn.Close()
		}
		c.signal(s)
		if code := c.exit(); code != exitOK || !strings.Contains(c.output(), `"msg":"stopped"`) {
			t.Errorf("%v: exit code %d\n%s", s, code, c.output())
		}
	}
}

func TestServeStartsAgainOnItsDirectory(t *testing.T) {
	dir := t.TempDir()
	var id any
	for range 2 {
		c := serveChild(t, dir)
		line := c.until("serving")
		if id != nil && line["id"] != id {
			t.Errorf("id is %v, was %v", line["id"], id)
		}
		id = line["id"]
		c.signal(syscall.SIGKILL)
		c.exit()
	}
}

// A request that does not end holds the stop; who sends a second signal does not want to wait for it.
func TestServeEndsAtOnceOnSecondSignal(t *testing.T) {
	c := serveChild(t, t.TempDir())
	conn, err := net.Dial("tcp", c.listeners()["admin"])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: a\r\nX-Slow: "); err != nil {
		t.Fatal(err)
	}
	r, err := http.Get("http://" + conn.RemoteAddr().String() + "/healthz") // connections are accepted in turn: the slow one is in
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	c.signal(syscall.SIGTERM)
	c.until("stopping")
	c.signal(syscall.SIGTERM)
	if code := c.exit(); code != exitSignal+int(syscall.SIGTERM) {
		t.Errorf("exit code %d\n%s", code, c.output())
	}
}

func TestServeTellsWhyItCannotStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	c := serveChild(t, t.TempDir(), "--set", "admin.address="+taken.Addr().String())
	if err := c.until("not started")["err"].(string); !strings.Contains(err, "start admin") || !strings.Contains(err, "address already in use") {
		t.Errorf("got %s", err)
	}
	if code := c.exit(); code != exitFailed {
		t.Errorf("exit code %d\n%s", code, c.output())
	}
}

// Something else in the place of a file or directory of data_dir ends the start with what to do, and stays as it is.
func TestServeTellsWhatLiesInTheWay(t *testing.T) {
	f := func(name string, dir bool, hint string) {
		t.Helper()
		data := t.TempDir()
		path := filepath.Join(data, "data", filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		make := func() error { return os.WriteFile(path, []byte("mine"), 0o600) }
		if dir {
			make = func() error { return os.Mkdir(path, 0o750) }
		}
		if err := make(); err != nil {
			t.Fatal(err)
		}
		c := serveChild(t, data)
		if got, _ := c.until("not started")["hint"].(string); !strings.Contains(got, hint) {
			t.Errorf("%s: hint %q, want %q\n%s", name, got, hint, c.output())
		}
		if code := c.exit(); code != exitFailed {
			t.Errorf("%s: exit code %d", name, code)
		}
		if fi, err := os.Lstat(path); err != nil || fi.IsDir() != dir {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
	f("spool", false, "a file lies in the place of a directory")
	f("spool/journal", false, "a file lies in the place of a directory")
	f("spool/seg/default", false, "a file lies in the place of a directory")
	f("spool/LOCK", true, "LOCK is a directory in the place of a file")
	f("admin_token", true, "admin_token is a directory in the place of a file")
	f("bans", true, "bans is a directory in the place of a file")
}

func TestStartHints(t *testing.T) {
	f := func(err error, want string) {
		t.Helper()
		if got := startHint(fmt.Errorf("gateway: start spool: %w", err)); got != want && (want == "" || !strings.Contains(got, want)) {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
	f(&fs.PathError{Op: "open", Path: "/d/meta.db", Err: syscall.EACCES}, "may not use /d/meta.db: give data_dir to that user (chown -R)")
	f(&fs.PathError{Op: "open", Path: "/d/LOCK", Err: syscall.EROFS}, "the file system of /d/LOCK is mounted read-only")
	f(&fs.PathError{Op: "open", Path: "/d/crt", Err: syscall.ENOENT}, "")
	f(&net.OpError{Op: "listen", Err: os.NewSyscallError("bind", syscall.EACCES)}, "")
}

func TestServeRefusesADirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	first := serveChild(t, dir)
	first.listeners()
	second := serveChild(t, dir)
	if code := second.exit(); code != exitFailed || !strings.Contains(second.output(), "another gateway runs on this directory") {
		t.Errorf("exit code %d\n%s", code, second.output())
	}
	first.signal(syscall.SIGTERM)
	if code := first.exit(); code != exitOK {
		t.Errorf("the first one ended with %d\n%s", code, first.output())
	}
}
