package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// idle is a number of connections that do nothing, and what the broker's whole process takes for them.
type idle struct {
	name       string
	count      int
	subscribed bool // each to a topic of its own at QoS 1
	broker     string
	most       float64 // KiB for each; 0 is no target
}

// idles are those that can be named on the command line.
var idles = []idle{
	{"idle", 10_000, false, "forebay", 7},
	{"idle-sub", 10_000, true, "forebay", 8},
	{"idle-tls", 5_000, true, "forebay-tls", 30},
	{"idle-50k", 50_000, true, "forebay", 0},
}

const (
	perAddress = 20_000           // connections from one source address: an address has 28,000 ports to begin with
	dialers    = 16               // at the same time
	settle     = 20 * time.Second // in which the memory of the connecting is given back, of what gives it back
)

func (i idle) run(w io.Writer, bin binaries, brokers []string) error {
	if err := raiseFiles(i.count + 1000); err != nil {
		return err
	}
	what := "without a subscription"
	if i.subscribed {
		what = "with one subscription"
	}
	fmt.Fprintf(w, "%s: %d idle connections %s\n", i.name, i.count, what)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  broker\tKiB/connection\trss MiB\tconnected in s\t")
	verdicts := ""
	for _, name := range brokers {
		b, err := choose(name, bin)
		if err != nil {
			return err
		}
		kib, rss, took, err := i.hold(b)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", i.name, b.name, err)
		}
		fmt.Fprintf(t, "  %s\t%.2f\t%.0f\t%.1f\t\n", b.name, kib, rss, took.Seconds())
		if b.name == i.broker && i.most > 0 {
			verdicts = fmt.Sprintf("  KiB/connection: %.2f, at most %.0f: %s\n", kib, i.most, verdict(kib <= i.most))
		}
	}
	t.Flush()
	fmt.Fprintln(w, verdicts)
	return nil
}

// hold opens the connections and returns the growth of the broker's resident memory for each.
func (i idle) hold(b broker) (kib, rss float64, took time.Duration, err error) {
	s, err := b.launch()
	if err != nil {
		return 0, 0, 0, err
	}
	defer s.stop()
	time.Sleep(time.Second)
	_, before := s.usage()
	began := time.Now()
	conns, err := i.open(target{addr: s.addr, speaks: b.speaks, secure: b.secure})
	took = time.Since(began)
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	if err != nil {
		return 0, 0, 0, err
	}
	time.Sleep(settle)
	_, after := s.usage()
	for n, c := range conns { // each is still there
		if n%97 != 0 {
			continue
		}
		if err := ping(c); err != nil {
			return 0, 0, 0, fmt.Errorf("connection %d: %w", n, err)
		}
	}
	return float64(after-before) / 1024 / float64(len(conns)), float64(after) / (1 << 20), took, nil
}

func (i idle) open(to target) ([]net.Conn, error) {
	conns := make([]net.Conn, i.count)
	errs := make([]error, dialers)
	var wg sync.WaitGroup
	for d := range dialers {
		wg.Go(func() {
			for n := d; n < i.count && errs[d] == nil; n += dialers {
				conns[n], errs[d] = i.one(to, n)
			}
		})
	}
	wg.Wait()
	var open []net.Conn
	for _, c := range conns {
		if c != nil {
			open = append(open, c)
		}
	}
	return open, errors.Join(errs...)
}

func (i idle) one(to target, n int) (net.Conn, error) {
	from := net.Dialer{
		LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(1+n/perAddress))}, Timeout: 10 * time.Second, Control: portOnConnect,
	}
	c, err := from.Dial("tcp", to.addr)
	if err != nil {
		return nil, err
	}
	_ = c.(*net.TCPConn).SetLinger(0) // thousands of ports in TIME_WAIT would slow down the next run
	if to.secure {
		c = tls.Client(c, &tls.Config{InsecureSkipVerify: true})
	}
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	r := &packetReader{r: newSmallReader(c)}
	if _, err = c.Write(to.speaks.connect(fmt.Sprintf("idle-%d", n), false)); err == nil {
		_, err = r.expect(connack)
	}
	if err == nil && i.subscribed {
		if _, err = c.Write(to.speaks.subscribe(fmt.Sprintf("idle/%d/#", n), 1)); err == nil {
			_, err = r.expect(suback)
		}
	}
	if err == nil { // as a client does that keeps its connection alive
		if _, err = c.Write([]byte{0xc0, 0}); err == nil {
			_, err = r.expect(pingresp)
		}
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, c.SetDeadline(time.Time{})
}

// portOnConnect leaves the choice of the port to connect: bind would look for one that no connection at all has.
func portOnConnect(_, _ string, raw syscall.RawConn) error {
	var set error
	err := raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1) })
	return errors.Join(err, set)
}

func ping(c net.Conn) error {
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write([]byte{0xc0, 0}); err != nil {
		return err
	}
	_, err := (&packetReader{r: newSmallReader(c)}).expect(pingresp)
	return err
}

// raiseFiles lets this process, and the broker that it starts, have n open files.
func raiseFiles(n int) error {
	var have syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &have); err != nil {
		return err
	}
	if have.Cur >= uint64(n) {
		return nil
	}
	want := syscall.Rlimit{Cur: uint64(n), Max: max(have.Max, uint64(n))}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &want); err != nil {
		return fmt.Errorf("%d open files: %w", n, err)
	}
	return nil
}
