package mqtt_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/spool"
)

const childEnv = "FOREBAY_MQTT_TEST_CHILD" // directory of the spool; the test binary is then a server to be killed

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		serveChild(dir)
	}
	goleak.VerifyTestMain(m)
}

// serveChild serves on a port that it prints, until it is killed.
func serveChild(dir string) {
	cfg := mqtt.DefaultConfig()
	cfg.Listeners = []mqtt.ListenerConfig{{Name: "tcp", Type: mqtt.ListenerTCP, Address: "127.0.0.1:0"}}
	cfg.TakeOverInterval = 0
	sc := spool.DefaultConfig()
	sc.Dir = dir
	sc.Journal.FileSize = 1 << 20
	die := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	log, err := spool.Open(sc, spool.Options{})
	die(err)
	srv, err := mqtt.New(context.Background(), cfg, mqtt.Options{Log: mqtt.SpoolLog(log)})
	die(err)
	die(srv.Listen())
	die(json.NewEncoder(os.Stdout).Encode(srv.Addr("tcp")))
	die(srv.Run(context.Background()))
}

// child is a server in a process of its own.
type child struct {
	dir string

	mu   sync.Mutex
	cmd  *exec.Cmd
	addr *net.TCPAddr
}

func startChild(t testing.TB) *child {
	t.Helper()
	c := &child{dir: filepath.Join(t.TempDir(), "spool")}
	c.run(t)
	t.Cleanup(c.kill)
	return c
}

func (c *child) run(t testing.TB) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+c.dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatalf("child: %v", err)
	}
	addr := &net.TCPAddr{}
	if err := json.Unmarshal(line, addr); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cmd, c.addr = cmd, addr
}

// kill ends the process as kill -9 does, wherever it is.
func (c *child) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd != nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		c.cmd = nil
	}
}

func (c *child) address() net.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.addr
}

// Sessions, positions and identifiers survive kill -9 in every state: no acknowledged message is lost, and none of QoS 2
// is stored or delivered twice.
func TestNumberedMessagesSurviveKill(t *testing.T) {
	c := startChild(t)
	numbered(t, c.address, 3, 3, long(3000, 20000), func(n int) {
		if n%500 == 499 {
			c.kill()
			c.run(t)
		}
	})
}
