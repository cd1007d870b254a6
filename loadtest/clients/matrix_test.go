package clients

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// The clients of the matrix. Debian's mosquitto-clients have no WebSocket, paho.golang is for MQTT 5 only and
// paho.mqtt.golang for MQTT 3.1.1 only.
var foreigns = []foreign{
	{name: "mosquitto", versions: []int{4, 5}, transports: []string{"tcp"}, willAtEnd: true, prepare: prepareMosquitto},
	{name: "pahoc", versions: []int{4, 5}, transports: []string{"tcp", "ws"}, prepare: preparePahoC},
	{name: "paho.golang", versions: []int{5}, transports: []string{"tcp", "ws"}, prepare: preparePahoGo},
	{name: "paho.mqtt.golang", versions: []int{4}, transports: []string{"tcp", "ws"}, prepare: preparePahoGo3},
	{name: "mqttjs", versions: []int{4, 5}, transports: []string{"tcp", "ws"}, prepare: prepareMQTTjs},
}

var scenarios = []struct {
	name    string
	version int // 0: each
	run     func(t *testing.T, e env)
}{
	{name: "QoS", run: everyQoS},
	{name: "properties", version: 5, run: properties},
	{name: "retained", run: retained},
	{name: "will", run: will},
	{name: "persistent session", run: persistentSession},
	{name: "shared subscription", run: sharedSubscription},
}

func matrix(t *testing.T, g gateway) {
	for _, f := range foreigns {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			open := f.prepare(t)
			for _, version := range f.versions {
				for _, transport := range f.transports {
					url := "tcp://" + g.tcp
					if transport == "ws" {
						url = "ws://" + g.ws + "/mqtt"
					}
					cell := fmt.Sprintf("v%d/%s", version, transport)
					t.Run(cell, func(t *testing.T) {
						t.Parallel()
						for _, s := range scenarios {
							if s.version != 0 && s.version != version {
								continue
							}
							t.Run(s.name, func(t *testing.T) {
								name := strings.NewReplacer("/", "-", " ", "-").Replace(f.name + "-" + cell + "-" + s.name)
								s.run(t, env{
									url: url, version: version, name: name, willAtEnd: f.willAtEnd && version == 5, opener: open,
								})
							})
						}
					})
				}
			}
		})
	}
}

func everyQoS(t *testing.T, e env) {
	pub := e.open(t, options{id: "pub"})
	for qos := range 3 {
		topic := fmt.Sprintf("%s/%d", e.name, qos)
		s := e.open(t, sub(fmt.Sprint("sub", qos), qos, topic))
		m := message{topic: topic, payload: "21.5", qos: qos}
		publish(t, pub, m)
		receive(t, s, m)
		m.payload = "22.5"
		publish(t, pub, m)
		receive(t, s, m)
	}
}

func properties(t *testing.T, e env) {
	s := e.open(t, sub("sub", 2, e.name+"/+"))
	pub := e.open(t, options{id: "pub"})
	for qos := range 3 {
		m := message{
			topic: fmt.Sprintf("%s/%d", e.name, qos), payload: "21.5", qos: qos, user: "site:north site:south unit:K",
			contentType: "text/plain", responseTopic: "answers/7", correlation: "c-42",
		}
		publish(t, pub, m)
		receive(t, s, m)
	}
}

// A retained message is there for who comes later, until an empty one clears it.
func retained(t *testing.T, e env) {
	pub := e.open(t, options{id: "pub"})
	one := message{topic: e.name + "/1", payload: "one", qos: 1, retain: true}
	two := message{topic: e.name + "/2", payload: "two", qos: 1, retain: true}
	publish(t, pub, one)
	publish(t, pub, two)
	early := e.open(t, sub("early", 1, e.name+"/#"))
	got := []string{next(t, early).String(), next(t, early).String()}
	slices.Sort(got)
	if want := []string{one.String(), two.String()}; !slices.Equal(got, want) {
		t.Errorf("received %v, want %v", got, want)
	}
	cleared := one
	cleared.payload = ""
	publish(t, pub, cleared)
	cleared.retain = false // a new message for who was there
	receive(t, early, cleared)

	late := e.open(t, sub("late", 1, e.name+"/#"))
	receive(t, late, two)
	live := message{topic: e.name + "/1", payload: "live", qos: 1}
	publish(t, pub, live)
	receive(t, late, live)
}

// A will is sent when the connection is lost, and not after a DISCONNECT that does not ask for it.
func will(t *testing.T, e env) {
	watcher := e.open(t, sub("watcher", 1, e.name+"/#"))
	asked := message{topic: e.name + "/polite", payload: "bye", qos: 1}
	polite := e.open(t, options{id: "polite", will: &asked})
	if err := polite.close(); err != nil {
		t.Errorf("disconnect: %v", err)
	}
	if e.willAtEnd {
		receive(t, watcher, asked)
	}
	r := newRelay(t, e.url)
	m := message{topic: e.name + "/lost", payload: "bye", qos: 1}
	e.openAt(t, r.url, options{id: "lost", will: &m})
	r.cut()
	receive(t, watcher, m)
}

// What is published while a client with a session is away comes when it is back, in order and once.
func persistentSession(t *testing.T, e env) {
	o := sub("sub", 2, e.name+"/t")
	o.resume = true
	s := e.open(t, o)
	if present, known := s.present(); known && present {
		t.Error("the first CONNACK says that there is a session")
	}
	pub := e.open(t, options{id: "pub"})
	// QoS 0: a library may give a message to its user, disconnect, and never send its PUBACK.
	m := message{topic: e.name + "/t", payload: "before"}
	publish(t, pub, m)
	receive(t, s, m)
	if err := s.close(); err != nil {
		t.Errorf("disconnect: %v", err)
	}
	for qos := 1; qos <= 2; qos++ {
		for i := range 3 {
			publish(t, pub, message{topic: e.name + "/t", payload: fmt.Sprintf("%d-%d", qos, i), qos: qos})
		}
	}
	o.subs = nil
	s = e.open(t, o)
	if present, known := s.present(); known && !present {
		t.Error("the second CONNACK says that there is no session")
	}
	for qos := 1; qos <= 2; qos++ {
		for i := range 3 {
			receive(t, s, message{topic: e.name + "/t", payload: fmt.Sprintf("%d-%d", qos, i), qos: qos})
		}
	}
	m.payload, m.qos = "after", 1
	publish(t, pub, m)
	receive(t, s, m)
}

// Each message of a shared subscription goes to one of its members, and each member gets some.
func sharedSubscription(t *testing.T, e env) {
	filter := "$share/" + e.name + "/" + e.name + "/t"
	one := e.open(t, sub("one", 1, filter))
	two := e.open(t, sub("two", 1, filter))
	const n = 20
	var ms []message
	for i := range n {
		ms = append(ms, message{topic: e.name + "/t", payload: fmt.Sprint("m", i), qos: 1})
	}
	publish(t, e.open(t, options{id: "pub"}), ms...)
	seen := make(map[string]int)
	var counts [2]int
	for range n {
		var m message
		select {
		case m = <-one.messages():
			counts[0]++
		case m = <-two.messages():
			counts[1]++
		case <-time.After(patience):
			t.Fatalf("%d of %d messages arrived within %v: %v", len(seen), n, patience, seen)
		}
		seen[m.payload]++
	}
	if len(seen) != n || counts[0] == 0 || counts[1] == 0 {
		t.Errorf("members received %v messages, %d different ones; want %d, and some for each", counts, len(seen), n)
	}
}
