package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// server is a running broker.
type server struct {
	cmd  *exec.Cmd // nil when somebody else started it
	pid  int       // of the broker itself; cmd may only have started it
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
	s, err := b.launchIn(dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

func (b broker) launchIn(dir string) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	cmd, err := b.start(dir, port)
	if err != nil {
		return nil, err
	}
	s := &server{cmd: cmd, addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), dir: dir}
	told := new(strings.Builder)
	cmd.Stdout, cmd.Stderr = told, told
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", b.name, err)
	}
	s.pid = cmd.Process.Pid
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.DialTimeout("tcp", s.addr, time.Second)
		if err == nil {
			conn.Close()
			break
		}
		if time.Now().After(deadline) {
			s.stop()
			return nil, fmt.Errorf("%s does not listen: %w\n%s", b.name, err, told)
		}
	}
	if b.wrapped {
		if s.pid, err = childOf(cmd.Process.Pid); err != nil {
			s.stop()
			return nil, err
		}
	}
	return s, nil
}

// stop ends the broker and removes what it wrote.
func (s *server) stop() {
	if s.cmd == nil {
		return
	}
	_ = syscall.Kill(s.pid, syscall.SIGTERM)
	timer := time.AfterFunc(20*time.Second, func() {
		_ = syscall.Kill(s.pid, syscall.SIGKILL)
		_ = s.cmd.Process.Kill()
	})
	_ = s.cmd.Wait()
	timer.Stop()
	os.RemoveAll(s.dir)
	syscall.Sync() // what the removal costs the disk belongs to this round
}

// usage returns the processor time that the broker has used and its resident memory in bytes.
func (s *server) usage() (cpu time.Duration, rss int64) {
	if s.cmd == nil {
		return 0, 0
	}
	f := statOf(s.pid)
	if f == nil {
		return 0, 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	pages, _ := strconv.ParseInt(f[21], 10, 64)
	return time.Duration(user+system) * (time.Second / 100), pages * int64(os.Getpagesize())
}

// statOf are the fields of /proc/pid/stat behind the command's closing bracket, since a name may hold blanks (proc(5)).
func statOf(pid int) []string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(f) < 22 {
		return nil
	}
	return f
}

// childOf finds the process that another has started.
func childOf(parent int) (int, error) {
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range procs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if f := statOf(pid); f != nil && f[1] == strconv.Itoa(parent) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("process %d has no child", parent)
}
