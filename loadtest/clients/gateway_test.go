package clients

import (
	"fmt"
	"math/rand/v2"
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

// gateway is the real binary, running on free ports.
type gateway struct {
	tcp, ws, admin string // addresses
	kafka          string // bootstrap address of the upstream
}

// start builds the binary, starts it with a route to the given broker, or to the embedded one when broker is empty, and
// waits until it is ready. The test fails when the gateway does not end in order.
func start(t *testing.T, broker string) gateway {
	t.Helper()
	if testing.Short() {
		t.Skip("foreign clients and the real binary: left out by -short, run by make test-clients")
	}
	dir := t.TempDir()
	bin := build(t, dir)
	p := freePorts(t, 4)
	g := gateway{tcp: p[0], ws: p[1], admin: p[2], kafka: broker}
	upstream := fmt.Sprintf("upstreams:\n    - name: central\n      brokers: [%q]", broker)
	if broker == "" {
		g.kafka = p[3]
		upstream = "embedded:\n    enabled: true\n    address: " + g.kafka
	}
	serve(t, bin, dir, g.admin, fmt.Sprintf(`gateway:
  id: clients
  data_dir: %s
admin:
  address: %s
mqtt:
  listeners:
    - name: tcp
      type: tcp
      address: %s
    - name: websocket
      type: websocket
      address: %s
      path: /mqtt
bridge:
  %s
  routes:
    - name: all
      filters: ["#"]
      topic: telemetry
      create_topics:
        partitions: 1
`, filepath.Join(dir, "data"), g.admin, g.tcp, g.ws, upstream))
	return g
}

// build builds the binary into dir.
func build(t *testing.T, dir string) string {
	t.Helper()
	bin := filepath.Join(dir, "forebay")
	run(t, exec.Command("go", "build", "-o", bin, "github.com/forebay-gateway/forebay/cmd/forebay"))
	return bin
}

// serve starts the binary with a configuration, and waits until it is ready at its admin address. The configuration is
// forebay.yaml in dir.
func serve(t *testing.T, bin, dir, admin, text string) *exec.Cmd {
	t.Helper()
	config := filepath.Join(dir, "forebay.yaml")
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "serve", "--config", config)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "FOREBAY_") }) // of the tests, no keys
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the gateway ended with %v", err)
			}
		case <-time.After(30 * time.Second):
			_ = cmd.Process.Kill()
			t.Error("the gateway does not end")
		}
		if t.Failed() {
			t.Logf("log of the gateway:\n%s", log.String())
		}
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		resp, err := http.Get("http://" + admin + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return cmd
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the gateway is not ready: %v", err)
		}
	}
}

// handedOut are the ports that freePorts has returned: tests that run at the same time get others.
var handedOut sync.Map

// freePorts returns n loopback addresses that were free a moment ago. They are below those that the system gives to whoever does not
// care: the relays of other tests, and outgoing connections.
func freePorts(t *testing.T, n int) []string {
	t.Helper()
	const lowest, highest = 10_000, 30_000
	var out []string
	for tries := 0; len(out) < n; tries++ {
		addr := fmt.Sprintf("127.0.0.1:%d", lowest+rand.IntN(highest-lowest))
		if _, taken := handedOut.LoadOrStore(addr, true); taken {
			continue
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			if tries > 1000 {
				t.Fatal(err)
			}
			continue
		}
		l.Close()
		out = append(out, addr)
	}
	return out
}

// run runs a command and returns what it printed; the test fails with its output when it does.
func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return string(out)
}
