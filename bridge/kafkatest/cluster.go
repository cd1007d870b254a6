package kafkatest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	clusterID = "Rm9yZWJheVRlc3RDbHVzdA" // any 16 bytes, base64url without padding

	// startTimeout bounds the start of a node: 5 to 16 s were measured on two cores, a loaded machine is slower.
	startTimeout = 120 * time.Second

	// stopTimeout is what a node gets between SIGTERM and SIGKILL.
	stopTimeout = 20 * time.Second
)

// Options say what cluster a test wants. The zero value is one node with the defaults of properties.go.
type Options struct {
	Nodes int               // 1 or 3; 0 is 1
	Set   map[string]string // broker properties that replace or join the defaults

	Secure *Secure // listeners with TLS and logins; nil for none
}

// Cluster is a running set of brokers. Its methods may be called from one goroutine at a time.
type Cluster struct {
	dir   string
	jars  string
	nodes []*Node
}

// Start formats and starts a cluster, waits until every node serves, and ends it with the test. It skips the test in
// short mode, since a start takes seconds, and fails it when Java or Maven are missing: a test run that asked for a real
// Kafka must not pass without one.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("a real Apache Kafka takes seconds to start: left out by -short")
	}
	jars, err := Jars()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(t.TempDir(), jars, o)
	if c != nil {
		t.Cleanup(c.Close)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Open is Start without a test: the cluster lives in dir until Close. On an error the returned cluster, when it is not
// nil, holds what was started and must be closed too.
func Open(dir, jars string, o Options) (*Cluster, error) {
	n := max(o.Nodes, 1)
	ports, err := freePorts(4 * n)
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, jars: jars}
	for i := range n {
		c.nodes = append(c.nodes, &Node{
			c: c, id: i + 1, port: ports[4*i], controller: ports[4*i+1], secure: map[string]int{SSL: ports[4*i+2], SASLSSL: ports[4*i+3]},
		})
	}
	for _, nd := range c.nodes {
		if err := nd.format(o); err != nil {
			return c, err
		}
	}
	for _, nd := range c.nodes {
		if err := nd.launch(); err != nil {
			return c, err
		}
	}
	for _, nd := range c.nodes {
		if err := nd.wait(); err != nil {
			return c, err
		}
	}
	return c, nil
}

// Brokers are the bootstrap addresses.
func (c *Cluster) Brokers() []string {
	var out []string
	for _, n := range c.nodes {
		out = append(out, n.Addr())
	}
	return out
}

// Node returns node i, counted from 0.
func (c *Cluster) Node(i int) *Node { return c.nodes[i] }

// Close ends every node. It may be called twice.
func (c *Cluster) Close() {
	for _, n := range c.nodes {
		n.Resume()
		n.terminate()
	}
	for _, n := range c.nodes {
		n.Stop()
	}
}

// freePorts finds n ports that were free a moment ago. All are held open together, so no two are the same. They are below those that
// the system gives to outgoing connections: a node that starts again must find its port as it left it.
func freePorts(n int) ([]int, error) {
	const lowest, highest = 20_000, 32_000
	var ports []int
	var held []net.Listener
	defer func() {
		for _, l := range held {
			l.Close()
		}
	}()
	for tries := 0; len(ports) < n; tries++ {
		port := lowest + rand.IntN(highest-lowest)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			if tries < 1000 {
				continue
			}
			return nil, fmt.Errorf("kafkatest: %w", err)
		}
		held = append(held, l)
		ports = append(ports, port)
	}
	return ports, nil
}

// java is a command that runs class of the broker's jars.
func (c *Cluster) java(class string, args ...string) *exec.Cmd {
	return exec.Command("java", append([]string{
		"-Xmx512m", "-XX:+UseSerialGC", "-Dlog4j2.configurationFile=" + filepath.Join(here(), "log4j2.yaml"),
		"-cp", filepath.Join(c.jars, "*"), class,
	}, args...)...)
}

// properties are the defaults of node n, small so that a test cluster is light and quick to recover.
func (c *Cluster) properties(n *Node, o Options) string {
	var voters []string
	for _, m := range c.nodes {
		voters = append(voters, fmt.Sprintf("%d@127.0.0.1:%d", m.id, m.controller))
	}
	replicas := min(len(c.nodes), 3)
	inSync := strconv.Itoa(max(1, replicas-1))
	all := map[string]string{
		"process.roles":                  "broker,controller",
		"node.id":                        strconv.Itoa(n.id),
		"controller.quorum.voters":       strings.Join(voters, ","),
		"controller.listener.names":      "CONTROLLER",
		"listeners":                      fmt.Sprintf("PLAINTEXT://%s,CONTROLLER://127.0.0.1:%d", n.Addr(), n.controller),
		"advertised.listeners":           "PLAINTEXT://" + n.Addr(),
		"listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
		"log.dirs":                       filepath.Join(c.dir, "data", strconv.Itoa(n.id)),
		"auto.create.topics.enable":      "false",
		"default.replication.factor":     strconv.Itoa(replicas),
		"min.insync.replicas":            inSync,

		"offsets.topic.replication.factor":                 strconv.Itoa(replicas),
		"transaction.state.log.replication.factor":         strconv.Itoa(replicas),
		"transaction.state.log.min.isr":                    inSync,
		"share.coordinator.state.topic.replication.factor": strconv.Itoa(replicas),
		"share.coordinator.state.topic.min.isr":            inSync,

		"offsets.topic.num.partitions":         "5",
		"transaction.state.log.num.partitions": "5",
		"num.partitions":                       "4",
		"group.initial.rebalance.delay.ms":     "0",
		"log.segment.bytes":                    strconv.Itoa(64 << 20),

		// A killed broker loses its leaderships after 3 s instead of 9.
		"broker.heartbeat.interval.ms": "500",
		"broker.session.timeout.ms":    "3000",
	}
	if o.Secure != nil {
		maps.Copy(all, o.Secure.properties(n, all["listeners"], all["advertised.listeners"]))
	}
	maps.Copy(all, o.Set)
	var b strings.Builder
	keys := make([]string, 0, len(all))
	for k := range all {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		fmt.Fprintf(&b, "%s=%s\n", k, all[k])
	}
	return b.String()
}

// errEnded is what wait says when the broker's process is gone.
var errEnded = errors.New("the process ended")

// tail returns the last lines of a log, for error messages.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
