package proof

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forebay-gateway/forebay/bridge/kafkatest"
	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "forebay-proof-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "forebay")
	code := 1
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/forebay-gateway/forebay/cmd/forebay").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// long reports whether the long form of the tests is asked for.
func long() bool { return os.Getenv("FOREBAY_CRASH") == "long" }

// gateway is the real program as a child process.
type gateway struct {
	t      testing.TB
	config string
	mqtt   string // addresses
	admin  string
	log    string // file

	cmd    *exec.Cmd
	exited chan struct{}
	err    error // of the process, once it has exited
}

// small sizes: of the journal, so that its files are recycled within a short test; of segments, so that more than one exists;
// and of the memory for the newest records, so that it is full before an outage begins and readers have to go to the
// segments.
const small = `
  queue_size: 2MiB
  tail_size: 4MiB
  journal: {file_size: 4MiB, files: 3}
  segment: {max_size: 4MiB}
`

// configuration of the gateway under test.
const configuration = `
gateway:
  id: proof
  data_dir: %s
  stop_timeout: 20s
log:
  level: info
admin:
  address: %s
mqtt:
  listeners:
    - name: tcp
      type: tcp
      address: %s
spool:
  max_size: 1GiB
  min_free: 1MiB
%s
bridge:
  upstreams:
    - name: kafka
      brokers: ["%s"]
  routes:
    - name: telemetry
      upstream: kafka
      topic: %s
      create_topics: {partitions: 6, replication: 1}
`

// newGateway writes the configuration of a gateway in front of kafka. It is not started yet.
func newGateway(t testing.TB, kafka string) *gateway {
	t.Helper()
	return newGatewayOf(t, kafka, small)
}

// newGatewayOf is newGateway with the given sizes of the spool; without any it has the defaults.
func newGatewayOf(t testing.TB, kafka, sizes string) *gateway {
	t.Helper()
	return newGatewayTo(t, kafka, sizes, "telemetry")
}

// newGatewayTo is newGatewayOf with another Kafka topic.
func newGatewayTo(t testing.TB, kafka, sizes, topic string) *gateway {
	t.Helper()
	return newGatewayIn(t, filepath.Join(t.TempDir(), "data"), kafka, sizes, topic)
}

// newGatewayIn is newGatewayTo with its data_dir.
func newGatewayIn(t testing.TB, data, kafka, sizes, topic string) *gateway {
	t.Helper()
	return newGatewayWith(t, func(admin, mqtt string) string {
		return fmt.Sprintf(configuration, data, admin, mqtt, sizes, kafka, topic)
	})
}

// newGatewayWith writes the configuration that the function makes of two free addresses.
func newGatewayWith(t testing.TB, configuration func(admin, mqtt string) string) *gateway {
	t.Helper()
	dir := t.TempDir()
	g := &gateway{t: t, mqtt: freeAddress(t), admin: freeAddress(t), log: filepath.Join(dir, "log"), config: filepath.Join(dir, "forebay.yaml")}
	if err := os.WriteFile(g.config, []byte(configuration(g.admin, g.mqtt)), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if g.cmd != nil {
			g.kill()
		}
		if t.Failed() {
			g.showLog()
		}
	})
	return g
}

// freeAddress is on a port that was free a moment ago. The system gives ports from 32768 on to whoever connects, also while the
// gateway is away for a moment: it would not find its port again.
func freeAddress(t testing.TB) string {
	t.Helper()
	for range 100 {
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000)))
		if err != nil {
			continue
		}
		defer ln.Close()
		return ln.Addr().String()
	}
	t.Fatal("no free port")
	return ""
}

// start runs the program; what it logs is appended to one file.
func (g *gateway) start() {
	g.t.Helper()
	log, err := os.OpenFile(g.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		g.t.Fatal(err)
	}
	g.cmd = exec.Command(binary, "serve", "--config", g.config)
	g.cmd.Stdout, g.cmd.Stderr = log, log
	g.cmd.Env = environment()
	if err := g.cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	exited := make(chan struct{})
	g.exited = exited
	cmd := g.cmd
	go func() {
		g.err = cmd.Wait()
		log.Close()
		close(exited)
	}()
}

// environment is this process's without what its tests are told by: the program takes a FOREBAY_ name that is no key for a slip.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "FOREBAY_") })
}

// awaitReady waits until the gateway can acknowledge, and returns how long that took.
func (g *gateway) awaitReady() time.Duration {
	g.t.Helper()
	began := time.Now()
	for time.Since(began) < 30*time.Second {
		select {
		case <-g.exited:
			g.t.Fatalf("the gateway ended while it started: %v", g.err)
		default:
		}
		if resp, err := http.Get("http://" + g.admin + "/readyz"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return time.Since(began)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	g.t.Fatal("the gateway is not ready after 30 s")
	return 0
}

// kill is kill -9.
func (g *gateway) kill() {
	g.cmd.Process.Signal(syscall.SIGKILL)
	<-g.exited
}

// terminate is SIGTERM; it returns how long the process took to end.
func (g *gateway) terminate() time.Duration {
	g.t.Helper()
	began := time.Now()
	g.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-g.exited:
	case <-time.After(30 * time.Second):
		g.t.Fatal("the gateway is still there 30 s after SIGTERM")
	}
	return time.Since(began)
}

// resident is the memory of the process in bytes; 0 where nobody tells.
func (g *gateway) resident() int64 { return g.memory("VmRSS") }

// memory is what the kernel says under a name: RssAnon is the process's own, RssFile pages of files that it has mapped, which
// the kernel takes back when it needs them.
func (g *gateway) memory(name string) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for l := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(l, []byte(name+":")); ok {
			kb, _ := strconv.ParseInt(strings.Fields(string(rest))[0], 10, 64)
			return kb << 10
		}
	}
	return 0
}

// showLog prints the end of the gateway's log.
func (g *gateway) showLog() {
	f, err := os.Open(g.log)
	if err != nil {
		return
	}
	defer f.Close()
	var last []string
	for s := bufio.NewScanner(f); s.Scan(); {
		last = append(last, s.Text())
		last = last[max(0, len(last)-60):]
	}
	g.t.Logf("the gateway's last words:\n%s", strings.Join(last, "\n"))
}

// kafka is a broker that outlives the gateway. It can go away itself, with its data kept.
type kafka struct {
	addr        string
	start, stop func()
}

// newKafka is a broker in this process.
func newKafka(t *testing.T) *kafka {
	t.Helper()
	dir, addr := t.TempDir(), freeAddress(t)
	_, p, _ := net.SplitHostPort(addr)
	port, _ := strconv.Atoi(p)
	var cluster *kfake.Cluster
	k := &kafka{addr: addr}
	k.start = func() {
		t.Helper()
		var err error
		cluster, err = kfake.NewCluster(kfake.Ports(port), kfake.DataDir(dir), kfake.SeedTopics(6, "telemetry"))
		if err != nil {
			t.Fatal(err)
		}
	}
	k.stop = func() {
		if cluster != nil {
			cluster.Close()
			cluster = nil
		}
	}
	k.start()
	t.Cleanup(k.stop)
	return k
}

// newApacheKafka is a real one, which goes away by kill -9.
func newApacheKafka(t testing.TB) *kafka {
	t.Helper()
	c := kafkatest.Start(t, kafkatest.Options{})
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := kadm.NewClient(cl).CreateTopic(ctx, 6, 1, nil, "telemetry"); err != nil {
		t.Fatal(err)
	}
	return &kafka{addr: c.Brokers()[0], stop: c.Node(0).Kill, start: func() {
		t.Helper()
		if err := c.Node(0).Start(); err != nil {
			t.Fatal(err)
		}
	}}
}

// load is a fleet under way.
type load struct {
	*fleet.Fleet
	t    testing.TB
	done chan struct{}
	r    *fleet.Report
	err  error
}

// startLoad lets a fleet publish until stop.
func startLoad(t testing.TB, cfg fleet.Config) *load {
	t.Helper()
	f, err := fleet.New(cfg, fleet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := &load{Fleet: f, t: t, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(l.done)
		l.r, l.err = f.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-l.done
	})
	return l
}

// usual is the load of these tests: every QoS, a persistent subscriber, everything to Kafka.
func usual(g *gateway, k *kafka) fleet.Config {
	return fleet.Config{
		Broker: g.mqtt, TopicPrefix: "proof", Devices: 20, Rate: 2000, Mix: fleet.Mix{5, 65, 30}, Window: 50,
		Subscribers: 2, SubscriberQoS: 2, Kafka: []string{k.addr}, KafkaTopic: []string{"telemetry"}, IDHeader: "forebay.id",
		Protocol: fleet.Both, Drain: 20 * time.Second,
	}
}

// await waits until ok says so.
func (l *load) await(what string, ok func(fleet.Snapshot) bool) {
	l.t.Helper()
	for began := time.Now(); time.Since(began) < 60*time.Second; time.Sleep(5 * time.Millisecond) {
		select {
		case <-l.done:
			l.t.Fatalf("the load ended while waiting for %s: %v", what, errors.Join(l.err, errors.New(l.text())))
		default:
		}
		if ok(l.Snapshot()) {
			return
		}
	}
	l.t.Fatalf("no %s after 60 s: %+v", what, l.Snapshot())
}

// finish ends publishing and fails unless everything reconciles.
func (l *load) finish() *fleet.Report {
	l.t.Helper()
	l.Stop()
	<-l.done
	if l.err != nil {
		l.t.Fatal(l.err)
	}
	l.t.Log(l.text())
	if !l.r.Verdict.Reconciled {
		l.t.Error("the totals do not reconcile")
	}
	return l.r
}

func (l *load) text() string {
	if l.r == nil {
		return "no report"
	}
	return l.r.Text()
}

// sampler watches a number until stop, and knows the largest.
type sampler struct {
	quit chan struct{}
	wg   sync.WaitGroup
	max  int64
}

func sample(read func() int64) *sampler {
	s := &sampler{quit: make(chan struct{})}
	s.wg.Go(func() {
		t := time.NewTicker(50 * time.Millisecond)
		defer t.Stop()
		for {
			s.max = max(s.max, read())
			select {
			case <-s.quit:
				return
			case <-t.C:
			}
		}
	})
	return s
}

func (s *sampler) stop() int64 {
	close(s.quit)
	s.wg.Wait()
	return s.max
}
