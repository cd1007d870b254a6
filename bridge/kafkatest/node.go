package kafkatest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Node is one broker and controller in one process.
type Node struct {
	c                *Cluster
	id               int
	port, controller int
	secure           map[string]int // ports by listener

	cmd   *exec.Cmd
	ended chan struct{} // closed when the process of cmd is gone
}

// Addr is the node's PLAINTEXT listener.
func (n *Node) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(n.port)) }

// Log is the path of the node's log.
func (n *Node) Log() string { return filepath.Join(n.c.dir, fmt.Sprintf("node-%d.log", n.id)) }

// Kill ends the node at once, as a power cut of its process would (SIGKILL), and waits until it is gone.
func (n *Node) Kill() {
	n.signal(syscall.SIGKILL)
	n.gone(stopTimeout)
}

// Stop shuts the node down in order: leaderships move away first. It kills the node that takes too long.
func (n *Node) Stop() {
	n.terminate()
	if !n.gone(stopTimeout) {
		n.Kill()
	}
}

// Pause freezes the process (SIGSTOP): connections stay open and nothing answers. Resume lets it go on.
func (n *Node) Pause() { n.signal(syscall.SIGSTOP) }

// Resume lets a paused node go on.
func (n *Node) Resume() { n.signal(syscall.SIGCONT) }

// Start starts a node that was killed or stopped, on its old data and port, and waits until it serves.
func (n *Node) Start() error {
	if err := n.launch(); err != nil {
		return err
	}
	return n.wait()
}

func (n *Node) terminate() { n.signal(syscall.SIGTERM) }

func (n *Node) signal(s syscall.Signal) {
	if n.cmd != nil {
		_ = n.cmd.Process.Signal(s) // a process that is gone already needs no signal
	}
}

// gone waits until the process is gone and says whether it is.
func (n *Node) gone(within time.Duration) bool {
	if n.cmd == nil {
		return true
	}
	select {
	case <-n.ended:
		return true
	case <-time.After(within):
		return false
	}
}

func (n *Node) config() string {
	return filepath.Join(n.c.dir, fmt.Sprintf("node-%d.properties", n.id))
}

// format writes the node's properties and its empty log directory.
func (n *Node) format(o Options) error {
	if err := os.WriteFile(n.config(), []byte(n.c.properties(n, o)), 0o644); err != nil {
		return fmt.Errorf("kafkatest: node %d: %w", n.id, err)
	}
	args := []string{"format", "-t", clusterID, "-c", n.config()}
	if o.Secure != nil {
		args = append(args, o.Secure.format()...)
	}
	if out, err := n.c.java("kafka.tools.StorageTool", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("kafkatest: format node %d: %w\n%s", n.id, err, out)
	}
	return nil
}

func (n *Node) launch() error {
	log, err := os.OpenFile(n.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("kafkatest: node %d: %w", n.id, err)
	}
	defer log.Close() // the child has its own descriptor
	cmd := n.c.java("kafka.Kafka", n.config())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // a test that is killed leaves no broker behind
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("kafkatest: start node %d: %w", n.id, err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	n.cmd, n.ended = cmd, ended
	return nil
}

// wait returns once the node accepts connections.
func (n *Node) wait() error {
	deadline := time.Now().Add(startTimeout)
	for {
		conn, err := net.DialTimeout("tcp", n.Addr(), time.Second)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-n.ended:
			err = errEnded
		default:
		}
		if err == errEnded || time.Now().After(deadline) {
			return fmt.Errorf("kafkatest: node %d does not serve: %w\n%s", n.id, err, tail(n.Log()))
		}
		time.Sleep(100 * time.Millisecond)
	}
}
