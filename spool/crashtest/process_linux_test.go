package crashtest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/spool/crashtest/image"
	"github.com/forebay-gateway/forebay/spool/crypt"
)

// process is a running child.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *os.File
	in   *os.File
	log  bytes.Buffer
	rest []byte // of a line
	dead bool
}

// rig is a disk for children.
type rig struct {
	*image.Disk
	t *testing.T

	keys     string   // directory with the key files; beside the image, as it should be
	keyMode  string   // added to the mode of every child
	keyModes []string // unless empty: each child has the next of them
}

// newRig makes an empty disk, or skips the test where that cannot be done.
func newRig(t *testing.T, fstype string, size int64) *rig {
	t.Helper()
	if testing.Short() {
		t.Skip("mounts file systems and takes seconds a round: not in the short form")
	}
	r := &rig{Disk: image.New(t, fstype, size), t: t, keys: t.TempDir()}
	for _, id := range []string{"1", "2"} {
		if err := os.WriteFile(filepath.Join(r.keys, id), crypt.NewKey(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// start starts the test binary as a child on the rig's file system.
func (r *rig) start(mode string) *process {
	r.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	out, w, err := os.Pipe()
	if err != nil {
		r.t.Fatal(err)
	}
	stdin, in, err := os.Pipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if len(r.keyModes) > 0 {
		r.keyMode = r.keyModes[0]
		r.keyModes = append(r.keyModes[1:], r.keyMode)
	}
	p := &process{t: r.t, cmd: exec.Command(exe), out: out, in: in}
	p.cmd.Env = append(os.Environ(), envDir+"="+filepath.Join(r.Mount, "spool"), envMode+"="+mode+" "+r.keyMode, envKeys+"="+r.keys)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = stdin, w, &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	_ = w.Close()
	_ = stdin.Close()
	r.t.Cleanup(p.kill) // before the unmount, which was registered earlier
	return p
}

// read gives the child's lines to fn until fn says so, the child has ended, or the time is over. It tells whether fn did.
func (p *process) read(limit time.Duration, fn func(line string) (done bool)) bool {
	p.t.Helper()
	_ = p.out.SetReadDeadline(time.Now().Add(limit))
	buf := make([]byte, 64<<10)
	for {
		for {
			line, rest, ok := bytes.Cut(p.rest, []byte("\n"))
			if !ok {
				break
			}
			p.rest = rest
			if fn(string(line)) {
				return true
			}
		}
		n, err := p.out.Read(buf)
		p.rest = append(p.rest, buf[:n]...)
		if n == 0 && err != nil {
			return false
		}
	}
}

// stop stops all threads of the child by SIGSTOP, and gives the lines that are in the pipe to fn: they were told before.
// The beginning of a line is not an acknowledgement.
func (p *process) stop(fn func(line string)) error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for began := time.Now(); ; {
		stopped, err := p.stopped()
		if err != nil {
			return err
		}
		if stopped {
			break
		}
		if time.Since(began) > 20*time.Second {
			return errors.New("child does not stop")
		}
		time.Sleep(time.Millisecond) // a thread that is inside of a sync stops when it is through
	}
	p.read(time.Millisecond, func(line string) bool { fn(line); return false })
	return nil
}

func (p *process) stopped() (bool, error) {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	if err != nil || len(stats) == 0 {
		return false, fmt.Errorf("child is gone: %v", err)
	}
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			return false, nil // the thread has ended
		}
		_, after, _ := strings.Cut(string(b), ") ")
		if strings.HasPrefix(after, "Z") {
			return false, errors.New("child has ended")
		}
		if !strings.HasPrefix(after, "T") {
			return false, nil
		}
	}
	return true, nil
}

func (p *process) kill() {
	if p.dead {
		return
	}
	p.dead = true
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	_ = p.out.Close()
	_ = p.in.Close()
}

// wait waits for the child's own end.
func (p *process) wait() error {
	p.dead = true
	err := p.cmd.Wait()
	_ = p.out.Close()
	_ = p.in.Close()
	return err
}

// logText is what the child has logged until its end.
func (p *process) logText() string {
	p.kill()
	return p.log.String()
}
