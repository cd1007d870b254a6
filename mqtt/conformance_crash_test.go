package mqtt_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// crashDir tells TestServerToBeKilled that it is the child, and where its spool is.
const crashDir = "FOREBAY_TEST_CRASH_DIR"

// TestServerToBeKilled is no test: it is the server of the tests below, in a process of its own.
func TestServerToBeKilled(t *testing.T) {
	dir := os.Getenv(crashDir)
	if dir == "" {
		t.Skip("only runs as the child of other tests")
	}
	s := newServer(dir)
	s.spool.Streams[0].Partitions = 4
	s.run(t)
	fmt.Println("listening on", s.tcp)
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent is gone
	s.stop(t)
}

// victim is a server in another process that can be killed.
type victim struct {
	server
	dir string
	cmd *exec.Cmd
}

func startVictim(t testing.TB) *victim {
	t.Helper()
	v := &victim{dir: filepath.Join(t.TempDir(), "spool")}
	v.start(t)
	t.Cleanup(func() { v.kill() })
	return v
}

func (v *victim) start(t testing.TB) {
	t.Helper()
	v.cmd = exec.Command(os.Args[0], "-test.run=^TestServerToBeKilled$", "-test.timeout=10m")
	v.cmd.Env = append(os.Environ(), crashDir+"="+v.dir)
	v.cmd.Stderr = os.Stderr
	if _, err := v.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := v.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := v.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if addr, ok := strings.CutPrefix(lines.Text(), "listening on "); ok {
			tcp, err := net.ResolveTCPAddr("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			v.tcp = tcp
			return
		}
		t.Log("child: ", lines.Text())
	}
	t.Fatalf("the child does not listen: %v", v.cmd.Wait())
}

// kill ends the process as kill -9 does.
func (v *victim) kill() {
	_ = v.cmd.Process.Kill()
	_ = v.cmd.Wait()
}

// crash kills the server and starts it again.
func (v *victim) crash(t testing.TB) {
	t.Helper()
	v.kill()
	v.start(t)
}

// MQTT 5, 4.1.0-1 and 4.3.3: the state of every step of QoS 2, both ways, is there after kill -9.
func TestQoS2SurvivesKill(t *testing.T) {
	v := startVictim(t)
	sub, pub := v.connect(t, keep("sub")), v.connect(t, keep("pub"))
	again := func() {
		t.Helper()
		v.crash(t)
		sub, pub = v.resume(t, keep("sub")), v.resume(t, keep("pub"))
	}
	sub.Subscribe("t", 2)
	p := mqtttest.Publish{Topic: "t", QoS: 2, ID: 9, Payload: "one"}
	pub.SendPublish(p)
	pub.ExpectAck(packets.Pubrec, 9, 0)
	id := sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "one"}).PacketID

	again()
	sub.ExpectPublish(mqtttest.Publish{Topic: "t", QoS: 2, ID: id, Dup: true, Payload: "one"})
	sub.SendAck(packets.Pubrec, id)
	sub.ExpectAck(packets.Pubrel, id, 0)
	p.Dup = true
	pub.SendPublish(p)
	pub.ExpectAck(packets.Pubrec, 9, 0)

	again()
	sub.ExpectAck(packets.Pubrel, id, 0)
	sub.SendAck(packets.Pubcomp, id)
	pub.SendAck(packets.Pubrel, 9)
	pub.ExpectAck(packets.Pubcomp, 9, 0)

	again()
	pub.SendAck(packets.Pubrel, 9)
	pub.ExpectAck(packets.Pubcomp, 9, 0x92)
	p.Payload, p.Dup = "two", false
	pub.Publish(p)
	pk := sub.Next()
	if pk.FixedHeader.Type == packets.Pubrel && pk.PacketID == id { // that the PUBCOMP came need not be durable
		sub.Send(`70 03 ` + hex16(id) + ` 92`)
		pk = sub.Next()
	}
	if pk.FixedHeader.Type != packets.Publish || string(pk.Payload) != "two" || pk.FixedHeader.Dup {
		t.Fatalf("got %+v, want the second message", pk)
	}
	sub.Finish(2, pk.PacketID)
	sub.Ping()
}

// What was acknowledged is delivered after kill -9, what was retained is still retained, and the will of a client that was
// connected is sent, because its connection was lost without a DISCONNECT.
func TestPromisesSurviveKill(t *testing.T) {
	v := startVictim(t)
	sub := v.connect(t, keep("sub"))
	sub.Subscribe("t/#", 1, `0b 07`)
	sub.Subscribe("will", 1)
	sub.Disconnect()
	pub := v.connect(t, mqtttest.Connect{ID: "pub", Will: &mqtttest.Publish{Topic: "will", QoS: 1, Payload: "bye"}})
	const n = 20
	for i := range n {
		pub.Publish(mqtttest.Publish{Topic: "t/x", QoS: byte(1 + i%2), Retain: true, Payload: msg(i)})
	}
	for round := range 2 { // a delivery that was not acknowledged does not get lost by the next crash either
		v.crash(t)
		sub = v.resume(t, keep("sub"))
		seen := make(map[string]bool)
		for len(seen) < n+1 {
			pk := sub.Expect(packets.Publish)
			seen[string(pk.Payload)] = true
			if round == 1 {
				sub.Finish(pk.FixedHeader.Qos, pk.PacketID)
			} else if pk.TopicName == "t/x" && fmt.Sprint(pk.Properties.SubscriptionIdentifier) != "[7]" {
				t.Errorf("subscription identifiers %v", pk.Properties.SubscriptionIdentifier)
			}
		}
		if !seen["bye"] {
			t.Error("no will")
		}
	}
	late := v.connect(t, mqtttest.Connect{ID: "late"})
	late.Subscribe("t/#", 1)
	late.Receive(mqtttest.Publish{Topic: "t/x", QoS: 1, Retain: true, Payload: msg(n - 1)})
	late.Ping()
}

func TestRetainedWillSurvivesKill(t *testing.T) {
	v := startVictim(t)
	v.connect(t, mqtttest.Connect{ID: "w", Will: &mqtttest.Publish{Topic: "w", QoS: 1, Retain: true, Payload: "bye"}})
	v.crash(t)
	pub := v.connect(t, mqtttest.Connect{ID: "sync"})
	pub.Publish(mqtttest.Publish{Topic: "x", QoS: 1})
	late := v.connect(t, mqtttest.Connect{ID: "late"})
	late.Subscribe("w", 1)
	late.Receive(mqtttest.Publish{Topic: "w", QoS: 1, Retain: true, Payload: "bye"})
	v.crash(t)
	late = v.connect(t, mqtttest.Connect{ID: "late"})
	late.Subscribe("w", 1)
	late.Receive(mqtttest.Publish{Topic: "w", QoS: 1, Retain: true, Payload: "bye"})
	late.Ping()
}
