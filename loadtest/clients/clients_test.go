package clients

import (
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/forebay-gateway/forebay/bridge/kafkatest"
)

// Every client in the matrix, and the way on to Kafka, with the embedded upstream.
func TestClientsEmbedded(t *testing.T) {
	g := start(t, "")
	t.Run("kcat", func(t *testing.T) { pahoToKcat(t, g) })
	t.Run("matrix", func(t *testing.T) { matrix(t, g) })
}

// The way on to Kafka with a real Apache Kafka.
func TestKafkaClients(t *testing.T) {
	pahoToKcat(t, start(t, kafkatest.Start(t, kafkatest.Options{}).Brokers()[0]))
}

// paho.golang publishes; kcat, a consumer on librdkafka, prints key, value and headers.
func pahoToKcat(t *testing.T, g gateway) {
	conn, err := net.Dial("tcp", g.tcp)
	if err != nil {
		t.Fatal(err)
	}
	c := paho.NewClient(paho.ClientConfig{Conn: conn})
	ack, err := c.Connect(t.Context(), &paho.Connect{ClientID: "meter-7", CleanStart: true, KeepAlive: 30})
	if err != nil {
		t.Fatalf("connect: %v %+v", err, ack)
	}
	for qos := range byte(3) {
		if _, err := c.Publish(t.Context(), &paho.Publish{
			Topic: "plant/7/temp", QoS: qos, Payload: []byte(fmt.Sprintf(`{"t":21.5,"n":%d}`, qos)),
			Properties: &paho.PublishProperties{ContentType: "application/json", User: paho.UserProperties{
				{Key: "site", Value: "north"}, {Key: "site", Value: "south"},
			}},
		}); err != nil {
			t.Fatalf("publish at QoS %d: %v", qos, err)
		}
	}
	if err := c.Disconnect(&paho.Disconnect{}); err != nil {
		t.Error(err)
	}

	kcat := exec.Command("timeout", "20", "kcat", "-C", "-b", g.kafka, "-t", "telemetry", "-o", "beginning", "-e", "-q", "-f", "%k|%s|%h\n")
	var out string
	for deadline := time.Now().Add(20 * time.Second); ; { // kcat gives up at once on a topic that does not exist yet
		b, err := exec.Command(kcat.Args[0], kcat.Args[1:]...).CombinedOutput()
		if out = string(b); err == nil && strings.Count(out, "meter-7|") == 3 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("kcat: %v\n%s", err, out)
		}
		time.Sleep(200 * time.Millisecond)
	}
	var lines []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "meter-7|") {
			lines = append(lines, line)
		}
	}
	for i, line := range lines {
		for _, want := range []string{
			fmt.Sprintf(`|{"t":21.5,"n":%d}|`, i), "mqtt.topic=plant/7/temp", "mqtt.client_id=meter-7", fmt.Sprintf("mqtt.qos=%d", i),
			"content-type=application/json", "site=north", "site=south", "forebay.id=clients/",
		} {
			if !strings.Contains(line, want) {
				t.Errorf("kcat printed %q, want %q in it", line, want)
			}
		}
	}
}
