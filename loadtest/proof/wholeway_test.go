package proof

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

// BenchmarkWholeWay carries messages of 200 B from 50 publishers, as fast as they may, to a real Apache Kafka, and counts until the
// last is there: through Forebay, and through Mosquitto with a bridge of paho.golang and franz-go behind it, in turns.
// Forebay acknowledges after its sync; Mosquitto keeps nothing. Target: 1.1.
func BenchmarkWholeWay(b *testing.B) {
	const count, turns = 200_000, 5
	k := newApacheKafka(b)
	peer := filepath.Join(b.TempDir(), "mqttbridge")
	if out, err := exec.Command("go", "build", "-o", peer, "./mqttbridge").CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	turn := 0
	carry := func(addr, topic string) float64 {
		began := time.Now()
		l := startLoad(b, fleet.Config{
			Broker: addr, TopicPrefix: "whole", Devices: 50, Mix: fleet.Mix{0, 100, 0}, Payload: 200, Window: 100, Count: count,
			Kafka: []string{k.addr}, KafkaTopic: []string{topic}, Drain: time.Minute,
		})
		for s := l.Snapshot(); s.Bridged < count; s = l.Snapshot() {
			select {
			case <-l.done:
				b.Fatalf("%v\n%s", l.err, l.text())
			case <-time.After(5 * time.Millisecond):
			}
			if time.Since(began) > time.Minute {
				b.Fatalf("not carried: %+v", s)
			}
		}
		took := time.Since(began)
		<-l.done
		if l.err != nil || !l.r.Verdict.Reconciled {
			b.Errorf("%v\n%s", l.err, l.text())
		}
		return count / took.Seconds()
	}
	sides := []struct {
		name string
		run  func(topic string) float64
	}{
		{"mosquitto", func(topic string) float64 {
			addr := mosquitto(b)
			cmd := exec.Command(peer, "-mqtt", addr, "-kafka", k.addr, "-topic", topic)
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			defer func() {
				_ = cmd.Process.Signal(syscall.SIGTERM)
				_ = cmd.Wait()
			}()
			if s := bufio.NewScanner(out); !s.Scan() {
				b.Fatal("the bridge did not start")
			}
			return carry(addr, topic)
		}},
		{"forebay", func(topic string) float64 {
			g := newGatewayTo(b, k.addr, "", topic)
			g.start()
			g.awaitReady()
			defer g.terminate()
			return carry(g.mqtt, topic)
		}},
	}
	rates := make([][]float64, len(sides))
	for round := range turns + 1 {
		for i, side := range sides {
			turn++
			topic := fmt.Sprintf("whole%d", turn)
			makeTopic(b, k.addr, topic)
			if rate := side.run(topic); round > 0 { // the first warms the broker up
				rates[i] = append(rates[i], rate)
			}
		}
	}
	for i, side := range sides {
		slices.Sort(rates[i])
		b.ReportMetric(rates[i][turns/2], side.name+"/s")
	}
	b.ReportMetric(rates[1][turns/2]/rates[0][turns/2], "ratio")
	b.ReportMetric(0, "ns/op")
}

// mosquitto is one without limits that would make it lose messages, until the benchmark's turn ends.
func mosquitto(b *testing.B) (addr string) {
	b.Helper()
	addr = freeAddress(b)
	_, port, _ := net.SplitHostPort(addr)
	conf := filepath.Join(b.TempDir(), "mosquitto.conf")
	text := fmt.Sprintf("listener %s 127.0.0.1\nallow_anonymous true\npersistence false\nlog_type error\n"+
		"max_inflight_messages 0\nmax_queued_messages 0\nset_tcp_nodelay true\n", port)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command("mosquitto", "-c", conf)
	if err := cmd.Start(); err != nil {
		b.Skipf("no mosquitto to compare with: %v", err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for range 100 {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return addr
		}
		time.Sleep(50 * time.Millisecond)
	}
	b.Fatal("mosquitto does not listen")
	return ""
}

func makeTopic(b *testing.B, addr, topic string) {
	b.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		b.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(b.Context(), 30*time.Second)
	defer cancel()
	if _, err := kadm.NewClient(cl).CreateTopic(ctx, 6, 1, nil, topic); err != nil {
		b.Fatal(err)
	}
}
