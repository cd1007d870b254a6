package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// broker is a server under test: how to start it on a free port with an empty directory.
type broker struct {
	name  string
	about string // what an acknowledgement of it means
	start func(dir string, port int) *exec.Cmd
	addr  string // of one that runs already, otherwise empty
}

// brokers are those that can be named on the command line.
func brokers(forebay string) []broker {
	return []broker{
		{name: "mosquitto", about: "in memory, no sync", start: func(dir string, port int) *exec.Cmd {
			conf := filepath.Join(dir, "mosquitto.conf")
			text := fmt.Sprintf("listener %d 127.0.0.1\nallow_anonymous true\npersistence false\nlog_type error\n"+
				"max_inflight_messages 0\nmax_queued_messages 0\nset_tcp_nodelay true\n", port)
			if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
				panic(err)
			}
			return exec.Command("mosquitto", "-c", conf)
		}},
		{name: "forebay", about: "every PUBACK after its sync", start: func(dir string, port int) *exec.Cmd {
			conf := filepath.Join(dir, "forebay.yaml")
			text := fmt.Sprintf("gateway:\n  id: bench\n  data_dir: %s\nlog:\n  level: warn\nadmin:\n  address: 127.0.0.1:0\n"+
				"mqtt:\n  listeners:\n    - name: tcp\n      type: tcp\n      address: 127.0.0.1:%d\n", filepath.Join(dir, "data"), port)
			if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
				panic(err)
			}
			return exec.Command(forebay, "serve", "--config", conf)
		}},
	}
}

// choose finds the broker of a name on the command line. name@host:port is one that runs already.
func choose(name, forebay string) (broker, error) {
	if name, addr, running := strings.Cut(name, "@"); running {
		return broker{name: name, about: "as it runs at " + addr, addr: addr}, nil
	}
	all := brokers(forebay)
	if i := slices.IndexFunc(all, func(b broker) bool { return b.name == name }); i >= 0 {
		return all[i], nil
	}
	return broker{}, fmt.Errorf("unknown broker %q", name)
}

// server is a running broker.
type server struct {
	cmd  *exec.Cmd // nil when somebody else started it
	addr string
	dir  string
}

func (b broker) launch() (*server, error) {
	if b.addr != "" {
		return &server{addr: b.addr}, nil
	}
	dir, err := os.MkdirTemp("", "versus-")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	s := &server{cmd: b.start(dir, port), addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), dir: dir}
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", b.name, err)
	}
	for deadline := time.Now().Add(15 * time.Second); ; {
		conn, err := net.DialTimeout("tcp", s.addr, time.Second)
		if err == nil {
			conn.Close()
			return s, nil
		}
		if time.Now().After(deadline) {
			s.stop()
			return nil, fmt.Errorf("%s does not listen: %w", b.name, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// stop ends the broker and removes what it wrote.
func (s *server) stop() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.AfterFunc(20*time.Second, func() { _ = s.cmd.Process.Kill() })
	_ = s.cmd.Wait()
	timer.Stop()
	os.RemoveAll(s.dir)
}

// usage returns the processor time that the broker has used and its resident memory in bytes.
func (s *server) usage() (cpu time.Duration, rss int64) {
	if s.cmd == nil {
		return 0, 0
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, 0
	}
	// Fields count from behind the command's closing bracket, since a name may hold blanks (proc(5)).
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	pages, _ := strconv.ParseInt(f[21], 10, 64)
	return time.Duration(user+system) * (time.Second / 100), pages * int64(os.Getpagesize())
}
