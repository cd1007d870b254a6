package mqtt

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool"
)

// faulty starts a server on a log that can be made to fail.
func faulty(t *testing.T, change func(*Config, *Options)) (*Server, *fakeLog) {
	t.Helper()
	log := newFakeLog()
	cfg := DefaultConfig()
	cfg.Listeners = []ListenerConfig{{Name: "tcp", Type: ListenerTCP, Address: "127.0.0.1:0"}}
	cfg.FullHold = unit.Duration(time.Second)
	opts := Options{Log: log}
	if change != nil {
		change(&cfg, &opts)
	}
	srv, err := New(t.Context(), cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	t.Cleanup(func() {
		log.set(func() { log.hold, log.fail, log.refuse = false, nil, nil })
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := srv.Close(context.Background()); err != nil {
			t.Error(err)
		}
		log.close()
	})
	return srv, log
}

func join(t *testing.T, srv *Server, o mqtttest.Connect) *mqtttest.Client {
	t.Helper()
	c := mqtttest.Dial(t, srv.Addr("tcp"))
	c.Connect(o)
	return c
}

const hour = `11 00000e10`

func refuseRecords(err error) func(spool.Entry) error {
	return func(e spool.Entry) error {
		if e.Record != nil {
			return err
		}
		return nil
	}
}

func TestFullSpoolIsToldToVersion5(t *testing.T) {
	srv, log := faulty(t, nil)
	c := join(t, srv, mqtttest.Connect{ID: "c", Properties: hour})
	log.set(func() { log.refuse = refuseRecords(fmt.Errorf("spool: append: %w", spool.ErrFull)) })
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1, ID: 1})
	c.ExpectAck(packets.Puback, 1, 0x97)
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2, ID: 2})
	c.ExpectAck(packets.Pubrec, 2, 0x97)
	c.SendPublish(mqtttest.Publish{Topic: "t"}) // dropped and counted
	c.Ping()
	log.set(func() { log.refuse = nil })
	c.Publish(mqtttest.Publish{Topic: "t", QoS: 2, ID: 2}) // the identifier is free, the message a new one
	if n := srv.Stats().Dropped[dropNotStored]; n != 1 {
		t.Errorf("%d dropped", n)
	}
}

// A will that comes while the spool is full must not hold up the sessions: without them nothing leaves the spool, and it stays full.
// One that the spool refuses is counted, and does not come back with a restart.
func TestWillsDoNotHoldUpSessionsWhenTheSpoolIsFull(t *testing.T) {
	srv, log := faulty(t, nil)
	w := &mqtttest.Publish{Topic: "w", QoS: 1, Payload: "bye"}
	block := make(chan struct{})
	defer close(block)
	log.set(func() { log.block = block }) // as policy block does
	join(t, srv, mqtttest.Connect{ID: "a", Properties: hour, Will: w}).Close()
	sub := join(t, srv, mqtttest.Connect{ID: "sub", Properties: hour})
	sub.Subscribe("w", 1)
	for value(srv.metrics.wills) != 1 {
		time.Sleep(time.Millisecond)
	}
	log.set(func() { log.refuse = refuseRecords(fmt.Errorf("spool: append: %w", spool.ErrFull)) })
	join(t, srv, mqtttest.Connect{ID: "b", Properties: hour, Will: w}).Close()
	for srv.Stats().Dropped[dropNotStored] != 1 {
		time.Sleep(time.Millisecond)
	}
	join(t, srv, mqtttest.Connect{ID: "c", Properties: hour, Will: w})
	log.mu.Lock()
	defer log.mu.Unlock()
	if wills := log.state[spaceWill]; len(wills) != 1 || wills["c"] == nil {
		t.Errorf("%d wills are kept", len(wills))
	}
}

// A retained message can be cleared while the spool is full, as that makes room; one that is not there cannot.
func TestRetainedMessageIsClearedWhenTheSpoolIsFull(t *testing.T) {
	srv, log := faulty(t, nil)
	c := join(t, srv, mqtttest.Connect{ID: "c", Properties: hour})
	for qos := range byte(3) {
		c.Publish(mqtttest.Publish{Topic: fmt.Sprint("t", qos), QoS: 1, Retain: true, Payload: "x"})
	}
	log.set(func() {
		log.refuse = func(e spool.Entry) error {
			if e.Record == nil || e.Reserve {
				return nil
			}
			return fmt.Errorf("spool: append: %w", spool.ErrFull)
		}
	})
	for qos := range byte(3) {
		c.Publish(mqtttest.Publish{Topic: fmt.Sprint("t", qos), QoS: qos, Retain: true})
	}
	c.SendPublish(mqtttest.Publish{Topic: "t1", QoS: 1, Retain: true, ID: 77})
	c.ExpectAck(packets.Puback, 77, 0x97)
	if n := srv.retained.len(); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// A QoS 0 publish is nobody's any more when its connection ends while it waits for room, and when the spool has failed.
func TestQoS0ThatIsNotStoredIsCounted(t *testing.T) {
	srv, log := faulty(t, nil)
	counted := func(want uint64) {
		t.Helper()
		for late := time.Now().Add(30 * time.Second); srv.Stats().Dropped[dropNotStored] != want; time.Sleep(time.Millisecond) {
			if time.Now().After(late) {
				t.Fatalf("%d dropped, want %d", srv.Stats().Dropped[dropNotStored], want)
			}
		}
	}
	block := make(chan struct{})
	defer close(block)
	log.set(func() { log.block = block })
	c := join(t, srv, mqtttest.Connect{ID: "c"})
	c.SendPublish(mqtttest.Publish{Topic: "t"})
	c.ExpectNothing(50 * time.Millisecond)
	join(t, srv, mqtttest.Connect{ID: "c"}) // takes the session over: the first connection ends
	counted(1)
	log.set(func() { log.block, log.refuse = nil, refuseRecords(spool.ErrFailed) })
	c = join(t, srv, mqtttest.Connect{ID: "d"})
	c.SendPublish(mqtttest.Publish{Topic: "t"})
	counted(2)
}

func TestFullSpoolHoldsVersion311(t *testing.T) {
	srv, log := faulty(t, nil)
	c := join(t, srv, mqtttest.Connect{ID: "c", Version: 4, Resume: true})
	log.set(func() { log.refuse = refuseRecords(spool.ErrFull) })
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1, ID: 1})
	c.ExpectNothing(100 * time.Millisecond)
	log.set(func() { log.refuse = nil })
	c.ExpectAck(packets.Puback, 1, 0) // there is room again in time

	log.set(func() { log.refuse = refuseRecords(spool.ErrFull) })
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2, ID: 2})
	c.ExpectClosed() // no acknowledgement: the client sends it again
	log.set(func() { log.refuse = nil })
	c = join(t, srv, mqtttest.Connect{ID: "c", Version: 4, Resume: true})
	c.Publish(mqtttest.Publish{Topic: "t", QoS: 2, ID: 2, Dup: true})
	if n := len(log.records); n != 2 {
		t.Errorf("%d records", n)
	}
}

func TestUnknownErrorIsNeverASuccess(t *testing.T) {
	srv, log := faulty(t, nil)
	log.set(func() { log.refuse = refuseRecords(errors.New("something else")) })
	for _, qos := range []byte{1, 2} {
		c := join(t, srv, mqtttest.Connect{ID: "c"})
		c.SendPublish(mqtttest.Publish{Topic: "t", QoS: qos, ID: 1})
		c.ExpectDisconnect(0x80)
	}
}

func TestFailedCommitIsNotAcknowledged(t *testing.T) {
	srv, log := faulty(t, nil)
	for _, qos := range []byte{1, 2} {
		c := join(t, srv, mqtttest.Connect{ID: "c"})
		log.set(func() { log.fail = spool.ErrFailed })
		c.SendPublish(mqtttest.Publish{Topic: "t", QoS: qos, ID: 1})
		c.ExpectDisconnect(0x80)
		log.set(func() { log.fail = nil })
	}
}

// A connection that waits for room in the log is not read, and can still be taken over; its publish comes again.
func TestWaitingForTheLogCanBeTakenOver(t *testing.T) {
	srv, log := faulty(t, nil)
	for _, qos := range []byte{1, 2} {
		o := mqtttest.Connect{ID: "c", Resume: true, Properties: hour}
		c := join(t, srv, o)
		block := make(chan struct{})
		log.set(func() { log.block = block })
		c.SendPublish(mqtttest.Publish{Topic: "t", QoS: qos, ID: 1})
		c.ExpectNothing(20 * time.Millisecond)
		again := join(t, srv, o)
		c.ExpectDisconnect(0x8E)
		for {
			again.SendPublish(mqtttest.Publish{Topic: "t", QoS: qos, ID: 1, Dup: true})
			pk, err := again.TryNext(20 * time.Millisecond)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break // it waits, as the first did
			}
			// The repetition was quicker than the end of the first, and was waiting for that one: see session.forget.
			if err != nil || pk.FixedHeader.Type != packets.Disconnect {
				t.Fatalf("got %v %v before there is room", pk.FixedHeader.Type, err)
			}
			again = join(t, srv, o)
		}
		log.set(func() { log.block = nil })
		close(block)
		if qos == 1 {
			again.ExpectAck(packets.Puback, 1, 0)
		} else {
			again.ExpectAck(packets.Pubrec, 1, 0)
			again.SendAck(packets.Pubrel, 1)
			again.ExpectAck(packets.Pubcomp, 1, 0)
		}
		again.Disconnect()
	}
	if n := len(log.records); n != 2 {
		t.Errorf("%d records", n)
	}
}

// The commit of a QoS 2 publish is pending while its client comes back and repeats it: one record, and PUBREC goes to the
// connection that is there.
func TestRepetitionWhileTheCommitIsPending(t *testing.T) {
	srv, log := faulty(t, nil)
	o := mqtttest.Connect{ID: "c", Resume: true, Properties: hour}
	c := join(t, srv, o)
	log.set(func() { log.refuse = func(spool.Entry) error { return nil } })
	log.set(func() { log.hold = true })
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2, ID: 7, Payload: "once"})
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2, ID: 7, Payload: "once", Dup: true})
	c.ExpectNothing(20 * time.Millisecond) // nothing before the commit
	c.Close()

	// The CONNECT waits for the log as well.
	again := mqtttest.Dial(t, srv.Addr("tcp"))
	again.SendConnect(o)
	again.ExpectNothing(20 * time.Millisecond)
	again.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2, ID: 7, Payload: "once", Dup: true})
	log.set(func() { log.hold = false })
	again.ExpectConnack(0)
	again.ExpectAck(packets.Pubrec, 7, 0)
	again.SendAck(packets.Pubrel, 7)
	again.ExpectAck(packets.Pubcomp, 7, 0)
	if n := len(log.records); n != 1 {
		t.Errorf("%d records", n)
	}
}

// panicky is an Access that finds a fault in our code.
type panicky struct{ n atomic.Int32 }

func (p *panicky) Connect(Client, []byte) error { return nil }
func (p *panicky) Publish(c Client, topic string, _ byte, _ bool) error {
	if topic == "boom" {
		p.n.Add(1)
		panic("boom")
	}
	return nil
}
func (p *panicky) Subscribe(Client, string, byte) error { return ErrNotAuthorized }

func TestPanicEndsOneConnection(t *testing.T) {
	a := &panicky{}
	srv, _ := faulty(t, func(_ *Config, o *Options) { o.Access = a })
	good := join(t, srv, mqtttest.Connect{ID: "good"})
	bad := join(t, srv, mqtttest.Connect{ID: "bad"})
	bad.SendPublish(mqtttest.Publish{Topic: "boom", QoS: 1, ID: 1})
	bad.ExpectDisconnect(0x80)
	good.Publish(mqtttest.Publish{Topic: "t", QoS: 1})
	if reason := good.ExpectSuback(good.SendSubscribe("t", 1)); reason != 0x87 {
		t.Errorf("suback 0x%02x", reason)
	}
	if n := value(srv.metrics.panics); n != 1 || a.n.Load() != 1 {
		t.Errorf("%d panics counted", n)
	}
}

// tired is a listener that runs out of file descriptors for a while.
type tired struct {
	net.Listener
	errs atomic.Int32
}

func (l *tired) Accept() (net.Conn, error) {
	if l.errs.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

func TestAcceptErrorsAreSurvived(t *testing.T) {
	srv, err := New(t.Context(), DefaultConfig(), Options{Log: newFakeLog()})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.spool.(*fakeLog).close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	weary := &tired{Listener: ln}
	weary.errs.Store(3)
	p := &patient{Listener: weary, l: srv.listeners[0]}
	go func() {
		if nc, err := net.Dial("tcp", ln.Addr().String()); err == nil {
			nc.Close()
		}
	}()
	nc, err := p.Accept()
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	if n := value(srv.metrics.acceptErrors); n != 3 {
		t.Errorf("%d errors counted", n)
	}
	ln.Close()
	if _, err := p.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("the default is not valid: %v", err)
	}
	cfg := DefaultConfig()
	cfg.Listeners = append(cfg.Listeners, ListenerConfig{Name: "tcp", Type: "udp", Address: "nowhere"},
		ListenerConfig{Name: "ws", Type: ListenerWebSocket, Address: ":1", Path: "mqtt"})
	cfg.ReceiveMaximum = 0
	cfg.MaxPacketSize = 1
	cfg.ConnectTimeout = 0
	err := cfg.Validate()
	for _, key := range []string{
		"listeners[2].name: ", "listeners[2].type: ", "listeners[2].address: ", "listeners[3].path: ", "receive_maximum: ",
		"max_packet_size: ", "connect_timeout: ",
	} {
		if err == nil || !strings.Contains("\n"+err.Error(), "\n"+key) {
			t.Errorf("%s is missing in:\n%v", key, err)
		}
	}
}

// A delivery whose time is over before its packet identifier is durable, or that waits behind such a one, is not sent any more
// (MQTT 5, 3.3.2-5), and holds no place in the window.
func TestHeldDeliveriesExpire(t *testing.T) {
	var ahead atomic.Int64
	srv, log := faulty(t, func(cfg *Config, opts *Options) {
		cfg.MaxInflight = 2
		opts.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	o := mqtttest.Connect{ID: "sub", Resume: true, Properties: hour}
	sub := join(t, srv, o)
	sub.Subscribe("t", 2)
	pub := join(t, srv, mqtttest.Connect{ID: "pub"})
	log.set(func() { log.hold = true })
	second := pub.SendPublish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "late", Properties: `02 0000000a`})
	first := pub.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: "behind it", Properties: `02 0000000a`})
	promised := make(chan struct{})
	await := func() (n int) {
		log.mu.Lock()
		defer log.mu.Unlock()
		return len(log.queue)
	}
	for await() < 2 {
		time.Sleep(time.Millisecond)
	}
	log.set(func() {
		log.hold = false
		log.refuse = func(e spool.Entry) error {
			if !log.hold && slices.ContainsFunc(e.Changes, func(c spool.Change) bool { return c.Space == spaceOutbound }) {
				log.hold = true
				close(promised)
			}
			return nil
		}
	})
	<-promised
	ahead.Store(int64(20 * time.Second))
	sub.ExpectNothing(time.Millisecond)
	log.set(func() { log.hold, log.refuse = false, nil })
	pub.ExpectAck(packets.Pubrec, second, 0)
	pub.ExpectAck(packets.Puback, first, 0)
	for i := range 3 {
		pub.Publish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: fmt.Sprint(i)})
		sub.Receive(mqtttest.Publish{Topic: "t", QoS: 1, Payload: fmt.Sprint(i)})
	}
	sub.Close()
	join(t, srv, o).Ping()
}
