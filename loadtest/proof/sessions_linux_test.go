package proof

import (
	"bufio"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool/crashtest/image"
)

// TestPowerCutKeepsSessionsInEveryState cuts the power while sessions are in every state that the standard knows: away with
// messages waiting, with deliveries of QoS 1 and 2 in flight, with publishes of QoS 2 in each phase, with wills that wait and
// wills of who is connected, members of a shared subscription, sessions and messages whose time goes on.
func TestPowerCutKeepsSessionsInEveryState(t *testing.T) {
	rounds := 1
	if long() {
		rounds = 10
	}
	disk := image.New(t, "ext4", 512<<20)
	g := newGatewayOn(t, disk, newKafka(t).addr)
	for i := range rounds {
		r := &round{t: t, g: g, prefix: fmt.Sprintf("r%d-", i)}
		checks := []func(){
			r.waiting(), r.inFlight1(), r.inFlight2(), r.inbound(), r.wills(), r.retained(), r.shared(), r.expiry(),
			r.burst(), // the last one: the power is cut right after its last acknowledgement
		}
		off := time.Until(r.until)
		g.cutPower(disk, max(0, off))
		for _, check := range checks {
			check()
		}
		for _, c := range r.clients {
			c.Close()
		}
	}
}

// round is one power cut. Each of its methods brings sessions into some state, and returns what checks them afterwards.
type round struct {
	t       *testing.T
	g       *gateway
	prefix  string
	until   time.Time // the gateway stays off until then
	clients []*mqtttest.Client
}

const forLong = `11 00000e10` // Session Expiry Interval of an hour

func (r *round) connect(id string, o mqtttest.Connect) (*mqtttest.Client, bool) {
	r.t.Helper()
	addr, err := net.ResolveTCPAddr("tcp", r.g.mqtt)
	if err != nil {
		r.t.Fatal(err)
	}
	c := mqtttest.Dial(r.t, addr)
	r.clients = append(r.clients, c)
	o.ID = r.prefix + id
	ack := c.Connect(o)
	return c, ack.SessionPresent
}

// join connects a client whose session stays, resume connects it again.
func (r *round) join(id string) *mqtttest.Client {
	r.t.Helper()
	c, _ := r.connect(id, mqtttest.Connect{Properties: forLong})
	return c
}

func (r *round) resume(id string) *mqtttest.Client {
	r.t.Helper()
	c, present := r.connect(id, mqtttest.Connect{Resume: true, Properties: forLong})
	if !present {
		r.t.Fatalf("the session of %s is gone", id)
	}
	return c
}

func (r *round) topic(name string) string { return r.prefix + name }

func (r *round) publish(c *mqtttest.Client, topic string, qos byte, payloads ...string) {
	r.t.Helper()
	for _, p := range payloads {
		c.Publish(mqtttest.Publish{Topic: r.topic(topic), QoS: qos, Payload: p})
	}
}

// metric reads a value without labels, or the sum over all labels.
func (r *round) metric(name string) (sum float64) {
	r.t.Helper()
	resp, err := http.Get("http://" + r.g.admin + "/metrics")
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), name); ok && (rest[0] == ' ' || rest[0] == '{') {
			v, _ := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
			sum += v
		}
	}
	return sum
}

// lose closes a connection without a DISCONNECT and waits until the gateway has seen it.
func (r *round) lose(c *mqtttest.Client) {
	r.t.Helper()
	before := r.metric("forebay_mqtt_connections")
	c.Close()
	for end := time.Now().Add(10 * time.Second); r.metric("forebay_mqtt_connections") >= before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatal("the gateway does not see the end of a connection")
		}
	}
}

// inbox is what a client gets. It acknowledges everything.
type inbox struct {
	r     *round
	c     *mqtttest.Client
	held  map[uint16]string // QoS 2, PUBREC sent
	order []string          // payloads; QoS 2 once for each identifier
	dup   map[string]bool   // of the last copy
	freed []uint16          // PUBRELs of deliveries that are not in held
}

func (r *round) inbox(c *mqtttest.Client) *inbox {
	return &inbox{r: r, c: c, held: make(map[uint16]string), dup: make(map[string]bool)}
}

// until takes packets until a message comes.
func (b *inbox) until(last string) []string {
	b.r.t.Helper()
	for !slices.Contains(b.order, last) {
		b.take(b.c.Next())
	}
	return b.order
}

func (b *inbox) take(pk packets.Packet) {
	switch pk.FixedHeader.Type {
	case packets.Publish:
		payload := string(pk.Payload)
		b.dup[payload] = pk.FixedHeader.Dup
		switch {
		case pk.FixedHeader.Qos == 1:
			b.order = append(b.order, payload)
			b.c.SendAck(packets.Puback, pk.PacketID)
		case pk.FixedHeader.Qos == 2:
			if _, ok := b.held[pk.PacketID]; !ok {
				b.order = append(b.order, payload)
				b.held[pk.PacketID] = payload
			}
			b.c.SendAck(packets.Pubrec, pk.PacketID)
		}
	case packets.Pubrel:
		if _, ok := b.held[pk.PacketID]; !ok {
			b.freed = append(b.freed, pk.PacketID)
		}
		delete(b.held, pk.PacketID)
		b.c.SendAck(packets.Pubcomp, pk.PacketID)
	default:
		b.r.t.Fatalf("got %+v", pk)
	}
}

func (r *round) equal(what string, got, want []string) {
	r.t.Helper()
	if !slices.Equal(got, want) {
		r.t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func numbers(from, to int) (list []string) {
	for i := from; i <= to; i++ {
		list = append(list, fmt.Sprint(i))
	}
	return list
}

// waiting: a session is away and messages wait for it.
func (r *round) waiting() func() {
	sub := r.join("away")
	sub.Subscribe(r.topic("away/#"), 2)
	sub.Disconnect()
	pub := r.join("away-pub")
	r.publish(pub, "away/1", 1, numbers(1, 50)...)
	r.publish(pub, "away/2", 2, numbers(51, 100)...)
	return func() {
		r.equal("a session that was away", r.inbox(r.resume("away")).until("100"), numbers(1, 100))
	}
}

// inFlight1: deliveries of QoS 1, of which two are acknowledged. Those may come again, as no checkpoint may know of it.
func (r *round) inFlight1() func() {
	sub, pub := r.join("one"), r.join("one-pub")
	sub.Subscribe(r.topic("one"), 1)
	r.publish(pub, "one", 1, numbers(1, 6)...)
	for i := range 6 {
		pk := sub.ExpectPublish(mqtttest.Publish{Topic: r.topic("one"), QoS: 1, Payload: fmt.Sprint(i + 1)})
		if i < 2 {
			sub.SendAck(packets.Puback, pk.PacketID)
		}
	}
	sub.Ping()
	return func() {
		in := r.inbox(r.resume("one"))
		r.publish(r.resume("one-pub"), "one", 1, "7")
		got := in.until("7")
		if !slices.Equal(got, numbers(8-len(got), 7)) || len(got) < 5 {
			r.t.Errorf("deliveries of QoS 1 in flight: got %v, want 3 to 7", got)
		}
		for n, dup := range in.dup {
			if dup != (n != "7") {
				r.t.Errorf("DUP of %s is %v", n, dup)
			}
		}
	}
}

// inFlight2: a delivery of QoS 2 in each phase.
func (r *round) inFlight2() func() {
	sub, pub := r.join("two"), r.join("two-pub")
	sub.Subscribe(r.topic("two"), 2)
	r.publish(pub, "two", 2, "complete", "released", "received", "sent")
	var ids []uint16
	for _, payload := range []string{"complete", "released", "received", "sent"} {
		ids = append(ids, sub.ExpectPublish(mqtttest.Publish{Topic: r.topic("two"), QoS: 2, Payload: payload}).PacketID)
	}
	for _, id := range ids[:2] {
		sub.SendAck(packets.Pubrec, id)
		sub.ExpectAck(packets.Pubrel, id, 0)
	}
	sub.SendAck(packets.Pubcomp, ids[0])
	sub.SendAck(packets.Pubrec, ids[2]) // its PUBREL may come or not
	return func() {
		in := r.inbox(r.resume("two"))
		r.publish(r.resume("two-pub"), "two", 2, "new")
		got := in.until("new")
		if got[0] == "received" {
			got = got[1:]
		}
		r.equal("deliveries of QoS 2 in flight", got, []string{"sent", "new"})
		if !in.dup["sent"] || in.dup["new"] {
			r.t.Errorf("DUP: %v", in.dup)
		}
		if !slices.Contains(in.freed, ids[1]) {
			r.t.Errorf("PUBREL of %v, want that of %d", in.freed, ids[1])
		}
	}
}

// inbound: a publish of QoS 2 in each phase.
func (r *round) inbound() func() {
	sub := r.join("in")
	sub.Subscribe(r.topic("in"), 2)
	sub.Disconnect()
	pub := r.join("in-pub")
	message := func(id uint16, dup bool) mqtttest.Publish {
		return mqtttest.Publish{Topic: r.topic("in"), QoS: 2, ID: id, Dup: dup, Payload: fmt.Sprint(id)}
	}
	for id := uint16(11); id <= 13; id++ {
		pub.SendPublish(message(id, false))
		pub.ExpectAck(packets.Pubrec, id, 0)
	}
	pub.SendAck(packets.Pubrel, 12)
	pub.ExpectAck(packets.Pubcomp, 12, 0)
	pub.SendAck(packets.Pubrel, 13) // its PUBCOMP may come or not
	pub.SendPublish(message(14, false))
	return func() {
		pub := r.resume("in-pub")
		for _, id := range []uint16{11, 14} {
			pub.SendPublish(message(id, true))
			pub.ExpectAck(packets.Pubrec, id, 0)
			pub.SendAck(packets.Pubrel, id)
			pub.ExpectAck(packets.Pubcomp, id, 0)
		}
		pub.SendAck(packets.Pubrel, 12)
		pub.ExpectAck(packets.Pubcomp, 12, 0x92)
		pub.SendAck(packets.Pubrel, 13)
		if pk := pub.Expect(packets.Pubcomp); pk.PacketID != 13 || pk.ReasonCode != 0 && pk.ReasonCode != 0x92 {
			r.t.Errorf("PUBCOMP of the released one: %+v", pk)
		}
		r.publish(pub, "in", 2, "new")
		r.equal("publishes of QoS 2", r.inbox(r.resume("in")).until("new"), []string{"11", "12", "13", "14", "new"})
	}
}

// wills: of who is connected, waiting for a short and for a long delay, and given up by DISCONNECT.
func (r *round) wills() func() {
	sub := r.join("wills")
	sub.Subscribe(r.topic("will"), 1)
	sub.Disconnect()
	will := func(name, delay string) *mqtttest.Client {
		c, _ := r.connect(name, mqtttest.Connect{Properties: forLong, Will: &mqtttest.Publish{
			Topic: r.topic("will"), QoS: 1, Payload: name, Properties: `18 ` + delay,
		}})
		return c
	}
	r.lose(will("short", `00000002`))
	r.lose(will("long", `00000e10`))
	will("polite", `00000000`).Disconnect()
	will("connected", `00000000`)
	return func() {
		in := r.inbox(r.resume("wills"))
		got := slices.Clone(in.until("short"))
		if !slices.Contains(got, "connected") {
			got = in.until("connected")
		}
		in.c.Ping()
		slices.Sort(got)
		r.equal("wills", got, []string{"connected", "short"})
	}
}

// retained: messages that were set, replaced and cleared.
func (r *round) retained() func() {
	pub := r.join("keep-pub")
	keep := func(topic string, qos byte, payload string) {
		pub.Publish(mqtttest.Publish{Topic: r.topic(topic), QoS: qos, Retain: true, Payload: payload})
	}
	keep("keep/a", 1, "old")
	keep("keep/b", 1, "gone")
	keep("keep/c", 2, "c")
	keep("keep/b", 2, "")
	keep("keep/a", 1, "a")
	return func() {
		c := r.join("keep")
		c.Subscribe(r.topic("keep/#"), 1)
		in := r.inbox(c)
		in.until("a")
		in.until("c")
		c.Ping()
		slices.Sort(in.order)
		r.equal("retained messages", in.order, []string{"a", "c"})
	}
}

// shared: one member has completed what it got, the other has begun.
func (r *round) shared() func() {
	const n = 20
	var members [2]*inbox
	for i := range members {
		c := r.join(fmt.Sprint("member", i))
		c.Subscribe("$share/"+r.prefix+"g/"+r.topic("share/#"), 2)
		members[i] = r.inbox(c)
	}
	pub := r.join("share-pub")
	r.publish(pub, "share/1", 1, numbers(1, n)...)
	r.publish(pub, "share/2", 2, numbers(n+1, 2*n)...)
	taken := make(map[string]int)
	gather := func(done func() bool, take func(i int, pk packets.Packet)) {
		r.t.Helper()
		for end := time.Now().Add(20 * time.Second); !done(); {
			for i, m := range members {
				if pk, err := m.c.TryNext(20 * time.Millisecond); err == nil {
					take(i, pk)
				}
			}
			if time.Now().After(end) {
				r.t.Fatalf("shared messages are missing: have %v", slices.Sorted(maps.Keys(taken)))
			}
		}
	}
	var begun []uint16
	got := 0
	gather(func() bool { return got == 2*n && len(members[0].held) == 0 }, func(i int, pk packets.Packet) {
		if pk.FixedHeader.Type == packets.Publish {
			got++
		}
		switch {
		case i == 0:
			members[0].take(pk)
		case pk.FixedHeader.Type == packets.Publish && pk.FixedHeader.Qos == 2 && len(begun) < 3:
			begun = append(begun, pk.PacketID)
			members[1].take(pk)
		}
	})
	for _, p := range append(slices.Clone(members[0].order), members[1].order...) {
		taken[p]++
	}
	return func() {
		second := members[1].held
		for i := range members {
			members[i] = r.inbox(r.resume(fmt.Sprint("member", i)))
		}
		maps.Copy(members[1].held, second)
		gather(func() bool { return len(taken) == 2*n && len(members[1].held) == 0 }, func(i int, pk packets.Packet) {
			before := len(members[i].order)
			members[i].take(pk)
			for _, p := range members[i].order[before:] {
				taken[p]++
			}
		})
		for _, m := range members {
			m.c.Ping()
		}
		for p, times := range taken {
			if v, _ := strconv.Atoi(p); v > n && times > 1 {
				r.t.Errorf("shared message %s of QoS 2 came %d times", p, times)
			}
		}
	}
}

// expiry: the time of sessions and messages goes on while the gateway is off.
func (r *round) expiry() func() {
	short, _ := r.connect("short-lived", mqtttest.Connect{Properties: `11 00000002`})
	short.Subscribe(r.topic("x"), 1)
	sub := r.join("x")
	sub.Subscribe(r.topic("x"), 1)
	short.Disconnect()
	sub.Disconnect()
	pub := r.join("x-pub")
	for payload, expiry := range map[string]string{"over": `00000002`, "kept": `00000e10`} {
		pub.Publish(mqtttest.Publish{Topic: r.topic("x"), QoS: 1, Payload: payload, Properties: `02 ` + expiry})
	}
	r.until = time.Now().Add(2500 * time.Millisecond)
	return func() {
		if _, present := r.connect("short-lived", mqtttest.Connect{Resume: true, Properties: forLong}); present {
			r.t.Error("a session outlived its expiry while the gateway was off")
		}
		c := r.resume("x")
		pk := c.ExpectPublish(mqtttest.Publish{Topic: r.topic("x"), QoS: 1, Payload: "kept"})
		if left := pk.Properties.MessageExpiryInterval; left < 3500 || left > 3598 {
			r.t.Errorf("%d s are left", left)
		}
		c.Ping()
	}
}

// burst: numbered messages of QoS 2 and 1 under way, of which the client has seen a part of the acknowledgements.
func (r *round) burst() func() {
	const n, seen = 100, 60
	sub := r.join("burst")
	sub.Subscribe(r.topic("burst/#"), 2)
	sub.Disconnect()
	pub := r.join("burst-pub")
	message := func(i int, dup bool) mqtttest.Publish {
		qos := byte(1 + i%2)
		return mqtttest.Publish{Topic: r.topic(fmt.Sprint("burst/", qos)), QoS: qos, ID: uint16(100 + i), Dup: dup, Payload: fmt.Sprint(i)}
	}
	kind := func(i int) byte { return []byte{packets.Puback, packets.Pubrec}[i%2] }
	for i := range n {
		pub.SendPublish(message(i, false))
	}
	for i := range seen {
		pub.ExpectAck(kind(i), uint16(100+i), 0)
	}
	return func() {
		pub := r.resume("burst-pub")
		for i := seen; i < n; i++ {
			pub.SendPublish(message(i, true))
			pub.ExpectAck(kind(i), uint16(100+i), 0)
		}
		for i := 1; i < n; i += 2 {
			pub.SendAck(packets.Pubrel, uint16(100+i))
			pub.ExpectAck(packets.Pubcomp, uint16(100+i), 0)
		}
		r.publish(pub, "burst/2", 2, "end")
		times := make(map[string]int)
		last := [2]int{-1, -1}
		for _, p := range r.inbox(r.resume("burst")).until("end") {
			times[p]++
			if i, err := strconv.Atoi(p); err == nil && times[p] == 1 {
				if i < last[i%2] {
					r.t.Errorf("%d comes after %d", i, last[i%2])
				}
				last[i%2] = i
			}
		}
		for i := range n {
			if got := times[fmt.Sprint(i)]; got == 0 || got > 1 && (i%2 == 1 || i < seen) {
				r.t.Errorf("%d came %d times", i, got)
			}
		}
	}
}
