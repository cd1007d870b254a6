package clients

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// mosquitto is a mosquitto_sub, when there are subscriptions or a will, and a mosquitto_pub for each publish.
type mosquitto struct {
	inbox
	id     string
	common []string // arguments of both programs
	sub    *exec.Cmd
	ended  chan struct{}

	mu  sync.Mutex
	log strings.Builder
}

func prepareMosquitto(t *testing.T) opener {
	for _, name := range []string{"mosquitto_pub", "mosquitto_sub", "stdbuf"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatal(err)
		}
	}
	return openMosquitto
}

func openMosquitto(_ *testing.T, url string, version int, o options) (session, error) {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(url, "tcp://"))
	if err != nil {
		return nil, err
	}
	m := &mosquitto{inbox: newInbox(), id: o.id, common: []string{"-h", host, "-p", port, "-V", map[int]string{4: "311", 5: "5"}[version]}}
	if len(o.subs) == 0 && o.will == nil && !o.resume {
		return m, nil
	}
	if len(o.subs) == 0 { // mosquitto_sub wants one
		o.subs = []subscription{{filter: "none/" + o.id}}
	}
	const format = `msg:%t:%p:%q:%r:%C:%R:%D:%P`
	args := append([]string{"-oL", "mosquitto_sub", "-d", "-i", o.id, "-F", format, "-q", fmt.Sprint(o.subs[0].qos)}, m.common...)
	for _, s := range o.subs {
		args = append(args, "-t", s.filter)
	}
	if o.resume {
		args = append(args, "-c")
		if version == 5 {
			args = append(args, "-x", "300")
		}
	}
	if w := o.will; w != nil {
		args = append(args, "--will-topic", w.topic, "--will-payload", w.payload, "--will-qos", fmt.Sprint(w.qos))
	}
	m.sub = exec.Command("stdbuf", args...)
	m.ended = make(chan struct{})
	return m, m.start()
}

// start runs mosquitto_sub until it is subscribed.
func (m *mosquitto) start() error {
	out, err := m.sub.StdoutPipe()
	if err != nil {
		return err
	}
	m.sub.Stderr = m.sub.Stdout
	if err := m.sub.Start(); err != nil {
		return err
	}
	subscribed := make(chan struct{})
	go func() {
		defer close(m.ended)
		var once sync.Once
		for lines := bufio.NewScanner(out); lines.Scan(); {
			line := lines.Text()
			m.note(line)
			if strings.HasPrefix(line, "Subscribed ") {
				once.Do(func() { close(subscribed) })
			}
			if rest, ok := strings.CutPrefix(line, "msg:"); ok {
				m.put(mosquittoMessage(rest))
			}
		}
		_ = m.sub.Wait()
	}()
	select {
	case <-subscribed:
		return nil
	case <-m.ended:
		return fmt.Errorf("mosquitto_sub ended:\n%s", m.printed())
	case <-time.After(patience):
		return fmt.Errorf("mosquitto_sub has not subscribed:\n%s", m.printed())
	}
}

// mosquittoMessage reads a line in the format of openMosquitto. Values have no colons, but for user properties.
func mosquittoMessage(line string) message {
	f := strings.SplitN(line, ":", 8)
	for len(f) < 8 {
		f = append(f, "")
	}
	return message{
		topic: f[0], payload: f[1], qos: int(f[2][0] - '0'), retain: f[3] == "1",
		contentType: f[4], responseTopic: f[5], correlation: f[6], user: f[7],
	}
}

func (m *mosquitto) publish(ms ...message) error {
	first := ms[0]
	// One client ID for all of them: what different clients publish has no order.
	args := append([]string{"-i", m.id, "-t", first.topic, "-q", fmt.Sprint(first.qos)}, m.common...)
	if first.retain {
		args = append(args, "-r")
	}
	property := func(name string, values ...string) {
		if values[0] != "" {
			args = append(append(args, "-D", "publish", name), values...)
		}
	}
	property("content-type", first.contentType)
	property("response-topic", first.responseTopic)
	property("correlation-data", first.correlation)
	for pair := range strings.FieldsSeq(first.user) {
		name, value, _ := strings.Cut(pair, ":")
		property("user-property", name, value)
	}
	var in strings.Builder
	switch {
	case len(ms) > 1:
		args = append(args, "-l")
		for _, msg := range ms {
			in.WriteString(msg.payload + "\n")
		}
	case first.payload == "":
		args = append(args, "-n")
	default:
		args = append(args, "-m", first.payload)
	}
	cmd := exec.Command("mosquitto_pub", args...)
	cmd.Stdin = strings.NewReader(in.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

func (m *mosquitto) present() (present, known bool) { return false, false }

// close ends mosquitto_sub with a signal, on which it disconnects.
func (m *mosquitto) close() error {
	if m.sub == nil {
		return nil
	}
	_ = m.sub.Process.Signal(syscall.SIGTERM)
	select {
	case <-m.ended:
		return nil
	case <-time.After(5 * time.Second):
		_ = m.sub.Process.Kill()
		<-m.ended
		return errors.New("mosquitto_sub does not end:\n" + m.printed())
	}
}

func (m *mosquitto) note(line string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log.WriteString(line + "\n")
}

func (m *mosquitto) printed() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.log.String()
}
