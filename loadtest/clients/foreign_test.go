package clients

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is how long a message may take. It is only used up by a test that fails.
const patience = 30 * time.Second

// foreign is a client that we did not write.
type foreign struct {
	name       string
	versions   []int    // 4 is MQTT 3.1.1
	transports []string // schemes of a URL: tcp, ws
	willAtEnd  bool     // with MQTT 5 its DISCONNECT asks for the will (reason code 0x04)

	// prepare builds or installs what is needed, once, and returns how a session of it is opened.
	prepare func(t *testing.T) opener
}

// opener connects a client to the URL, with its subscriptions made when it returns.
type opener func(t *testing.T, url string, version int, o options) (session, error)

// options are those of a CONNECT, and the subscriptions that follow it.
type options struct {
	id     string
	resume bool // Clean Start 0, with a session that is kept for some minutes
	will   *message
	subs   []subscription
}

type subscription struct {
	filter string
	qos    int
}

// message is an application message.
type message struct {
	topic, payload string
	qos            int
	retain         bool

	// MQTT 5
	user          string // name:value pairs in their order, with a space between
	contentType   string
	responseTopic string
	correlation   string
}

func (m message) String() string {
	s := fmt.Sprintf("%q to %s, QoS %d, retain %t", m.payload, m.topic, m.qos, m.retain)
	if m.user+m.contentType+m.responseTopic+m.correlation != "" {
		s += fmt.Sprintf(", user %q, content type %q, response topic %q, correlation data %q", m.user, m.contentType, m.responseTopic, m.correlation)
	}
	return s
}

// session is a connected client.
type session interface {
	// publish returns when the messages are acknowledged. They differ in their payload only.
	publish(ms ...message) error

	// messages is what the client received.
	messages() <-chan message

	// present tells Session Present of the CONNACK; known is false when the client keeps that to itself.
	present() (present, known bool)

	// close sends a DISCONNECT and waits for the end. It may be called again.
	close() error
}

// inbox is the messages of a session. It never blocks who puts.
type inbox struct{ c chan message }

func newInbox() inbox { return inbox{make(chan message, 1000)} }

func (b inbox) put(m message) {
	select {
	case b.c <- m:
	default:
		panic("more messages than any scenario has")
	}
}

func (b inbox) messages() <-chan message { return b.c }

// env is one cell of the matrix.
type env struct {
	url       string
	version   int
	name      string // for client IDs and topics
	willAtEnd bool   // see foreign
	opener    opener
}

// open connects a client that is disconnected when the test ends.
func (e env) open(t *testing.T, o options) session {
	t.Helper()
	return e.openAt(t, e.url, o)
}

func (e env) openAt(t *testing.T, url string, o options) session {
	t.Helper()
	o.id = e.name + "-" + o.id
	s, err := e.opener(t, url, e.version, o)
	if err != nil {
		t.Fatalf("connect %s: %v", o.id, err)
	}
	t.Cleanup(func() { _ = s.close() })
	return s
}

// sub is the options of a subscriber.
func sub(id string, qos int, filters ...string) options {
	o := options{id: id}
	for _, f := range filters {
		o.subs = append(o.subs, subscription{f, qos})
	}
	return o
}

func publish(t *testing.T, s session, ms ...message) {
	t.Helper()
	if err := s.publish(ms...); err != nil {
		t.Fatalf("publish %v: %v", ms[0], err)
	}
}

// next returns the next message.
func next(t *testing.T, s session) message {
	t.Helper()
	select {
	case m := <-s.messages():
		return m
	case <-time.After(patience):
		t.Fatalf("nothing arrived within %v", patience)
		return message{}
	}
}

func receive(t *testing.T, s session, want message) {
	t.Helper()
	if got := next(t, s); got != want {
		t.Fatalf("received %v\nwant     %v", got, want)
	}
}

// relay passes one client's connection on, until it is cut.
type relay struct {
	url      string
	listener net.Listener

	mu    sync.Mutex
	conns []net.Conn
}

func newRelay(t *testing.T, url string) *relay {
	t.Helper()
	scheme, rest, _ := strings.Cut(url, "://")
	host, path, _ := strings.Cut(rest, "/")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{url: scheme + "://" + l.Addr().String(), listener: l}
	if path != "" {
		r.url += "/" + path
	}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", host)
			if err != nil {
				in.Close()
				return
			}
			r.mu.Lock()
			r.conns = append(r.conns, in, out)
			r.mu.Unlock()
			go func() { _, _ = io.Copy(out, in) }()
			go func() { _, _ = io.Copy(in, out) }()
		}
	}()
	t.Cleanup(r.cut)
	return r
}

// cut ends the connection without a word to either side, and lets no other come.
func (r *relay) cut() {
	r.listener.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}
