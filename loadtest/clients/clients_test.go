package clients

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/forebay-gateway/forebay/bridge/kafkatest"
)

// With the embedded upstream.
func TestClientsEmbedded(t *testing.T) {
	wholeWay(t, start(t, ""))
}

// The same with a real Apache Kafka.
func TestKafkaClients(t *testing.T) {
	wholeWay(t, start(t, kafkatest.Start(t, kafkatest.Options{}).Brokers()[0]))
}

func wholeWay(t *testing.T, g gateway) {
	t.Run("mosquitto", func(t *testing.T) { mosquitto(t, g) })
	t.Run("mqttjs", func(t *testing.T) { mqttjs(t, g) })
	t.Run("paho", func(t *testing.T) { pahoToKcat(t, g) })
}

// mosquitto_pub and mosquitto_sub, both versions, every QoS.
func mosquitto(t *testing.T, g gateway) {
	host, port, _ := net.SplitHostPort(g.tcp)
	for _, version := range []string{"5", "311"} {
		for qos := range 3 {
			t.Run(fmt.Sprintf("v%s/qos%d", version, qos), func(t *testing.T) {
				topic := fmt.Sprintf("mosquitto/%s/%d", version, qos)
				common := []string{"-h", host, "-p", port, "-V", version, "-q", fmt.Sprint(qos), "-t", topic}
				sub := exec.Command("mosquitto_sub", append(common, "-C", "1", "-W", "15", "-F", "%t %q %p", "-d")...)
				var out strings.Builder
				sub.Stdout, sub.Stderr = &out, &out
				if err := sub.Start(); err != nil {
					t.Fatal(err)
				}
				// The retained flag makes the order of the two processes irrelevant.
				run(t, exec.Command("mosquitto_pub", append(common, "-r", "-m", "21.5")...))
				if err := sub.Wait(); err != nil {
					t.Fatalf("mosquitto_sub: %v\n%s", err, out.String())
				}
				if want := fmt.Sprintf("%s %d 21.5\n", topic, qos); !strings.Contains(out.String(), want) {
					t.Errorf("mosquitto_sub printed\n%s\nwant a line %q", out.String(), want)
				}
			})
		}
	}
}

// MQTT.js, over TCP and WebSocket, both versions, every QoS.
func mqttjs(t *testing.T, g gateway) {
	dir := installMQTTjs(t)
	for _, url := range []string{"mqtt://" + g.tcp, "ws://" + g.ws + "/mqtt"} {
		for _, version := range []string{"5", "4"} {
			for qos := range 3 {
				scheme, _, _ := strings.Cut(url, ":")
				t.Run(fmt.Sprintf("%s/v%s/qos%d", scheme, version, qos), func(t *testing.T) {
					topic := fmt.Sprintf("js/%s/%s/%d", scheme, version, qos)
					cmd := exec.Command("node", "roundtrip.mjs", url, version, fmt.Sprint(qos), topic, "21.5")
					cmd.Dir = dir
					var got struct {
						Topic, Payload, ContentType string
						QoS                         int
						User                        map[string]string
					}
					if out := run(t, cmd); json.Unmarshal([]byte(out), &got) != nil {
						t.Fatalf("MQTT.js printed %q", out)
					}
					if got.Topic != topic || got.Payload != "21.5" || got.QoS != qos {
						t.Errorf("MQTT.js received %+v, want %s, 21.5, QoS %d", got, topic, qos)
					}
					if version == "5" && (got.ContentType != "text/plain" || got.User["site"] != "north") {
						t.Errorf("MQTT.js received properties %+v, want content type text/plain and site=north", got)
					}
				})
			}
		}
	}
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

// installMQTTjs installs MQTT.js beside a copy of the script and returns the directory.
func installMQTTjs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("mqttjs")); err != nil {
		t.Fatal(err)
	}
	npm := exec.Command("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--silent")
	npm.Dir = dir
	run(t, npm)
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "mqtt")); err != nil {
		t.Fatal(err)
	}
	return dir
}
