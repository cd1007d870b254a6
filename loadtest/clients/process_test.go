package clients

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// process is a client that is a program. Requests go to its standard input, answers and messages come from its standard
// output, a line each, words with a space between, the number of the session second:
//
//	open 1 url=tcp://127.0.0.1:1883 version=5 id=a clean=1 expiry=0 will=topic willpayload=p willqos=1 sub=1,a/#
//	pub 1 topic=a/b payload=p qos=1 retain=0 user=name:value user=… content=text/plain response=r correlation=c
//	close 1
//
//	ok 1 present=0          (to open, pub and close; present only to open)
//	err 1 what is wrong
//	msg 1 topic=a/b payload=p qos=1 retain=0 user=… …
//
// No value has a space; what is empty is left out.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	ended chan struct{} // closed when it has ended

	mu       sync.Mutex
	sessions []*processSession // number - 1
	errors   strings.Builder   // what it printed besides
}

type processSession struct {
	inbox
	p       *process
	number  int
	answers chan string
	opened  string // the answer to open
	closed  bool
	alone   bool // the process ends with it
}

func startProcess(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, ended: make(chan struct{})}
	var out io.ReadCloser
	var err error
	if p.in, err = cmd.StdinPipe(); err == nil {
		out, err = cmd.StdoutPipe()
	}
	cmd.Stderr = &lockedWriter{p: p}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go p.read(out)
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("%s printed:\n%s", strings.Join(cmd.Args, " "), p.printed())
		}
	})
	return p
}

func (p *process) stop() {
	_ = p.in.Close()
	select {
	case <-p.ended:
	case <-time.After(2 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

func (p *process) read(out io.Reader) {
	defer close(p.ended)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var word string
		var number int
		if _, err := fmt.Sscan(lines.Text(), &word, &number); err != nil {
			_, _ = (&lockedWriter{p: p}).Write([]byte(lines.Text() + "\n"))
			continue
		}
		p.mu.Lock()
		s := p.sessions[number-1]
		p.mu.Unlock()
		rest := strings.TrimPrefix(lines.Text(), fmt.Sprint(word, " ", number))
		if word == "msg" {
			s.put(processMessage(rest))
		} else {
			s.answers <- word + rest
		}
	}
	_ = p.cmd.Wait()
}

func processMessage(words string) (m message) {
	for word := range strings.FieldsSeq(words) {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "topic":
			m.topic = value
		case "payload":
			m.payload = value
		case "qos":
			m.qos = int(value[0] - '0')
		case "retain":
			m.retain = value == "1"
		case "user":
			m.user = strings.TrimPrefix(m.user+" "+value, " ")
		case "content":
			m.contentType = value
		case "response":
			m.responseTopic = value
		case "correlation":
			m.correlation = value
		}
	}
	return m
}

func (p *process) open(url string, version int, o options) (*processSession, error) {
	p.mu.Lock()
	s := &processSession{inbox: newInbox(), p: p, number: len(p.sessions) + 1, answers: make(chan string, 1)}
	p.sessions = append(p.sessions, s)
	p.mu.Unlock()
	words := []string{"url=" + url, fmt.Sprint("version=", version), "id=" + o.id}
	if o.resume {
		words = append(words, "clean=0", "expiry=300")
	} else {
		words = append(words, "clean=1", "expiry=0")
	}
	if w := o.will; w != nil {
		words = append(words, "will="+w.topic, "willpayload="+w.payload, fmt.Sprint("willqos=", w.qos))
	}
	for _, f := range o.subs {
		words = append(words, fmt.Sprintf("sub=%d,%s", f.qos, f.filter))
	}
	var err error
	s.opened, err = s.ask("open", words...)
	return s, err
}

func (s *processSession) publish(ms ...message) error {
	for _, m := range ms {
		words := []string{"topic=" + m.topic, fmt.Sprint("qos=", m.qos), "retain=" + map[bool]string{true: "1", false: "0"}[m.retain]}
		word := func(name, value string) {
			if value != "" {
				words = append(words, name+"="+value)
			}
		}
		word("payload", m.payload)
		word("content", m.contentType)
		word("response", m.responseTopic)
		word("correlation", m.correlation)
		for pair := range strings.FieldsSeq(m.user) {
			word("user", pair)
		}
		if _, err := s.ask("pub", words...); err != nil {
			return err
		}
	}
	return nil
}

// ask sends a request and waits for its answer.
func (s *processSession) ask(request string, words ...string) (string, error) {
	line := fmt.Sprintf("%s %d %s\n", request, s.number, strings.Join(words, " "))
	if _, err := io.WriteString(s.p.in, line); err != nil {
		return "", err
	}
	select {
	case answer := <-s.answers:
		if !strings.HasPrefix(answer, "ok") {
			return "", errors.New(answer)
		}
		return answer, nil
	case <-s.p.ended:
		return "", errors.New("the process has ended: " + s.p.printed())
	case <-time.After(patience):
		return "", fmt.Errorf("no answer to %s", line)
	}
}

func (s *processSession) present() (present, known bool) {
	return strings.Contains(s.opened, "present=1"), strings.Contains(s.opened, "present=")
}

func (s *processSession) close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	_, err := s.ask("close")
	if s.alone {
		s.p.stop()
	}
	return err
}

func (p *process) printed() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.errors.String()
}

// lockedWriter collects what a process prints besides its answers.
type lockedWriter struct{ p *process }

func (w *lockedWriter) Write(b []byte) (int, error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.p.errors.Write(b)
}

// preparePahoC compiles pahoc/client.c. Each session is a process of its own.
func preparePahoC(t *testing.T) opener {
	bin := filepath.Join(t.TempDir(), "pahoc")
	run(t, exec.Command("cc", "-Wall", "-Werror", "-O1", "-o", bin, "pahoc/client.c", "-lpaho-mqtt3c", "-lpthread"))
	return func(t *testing.T, url string, version int, o options) (session, error) {
		s, err := startProcess(t, exec.Command(bin)).open(url, version, o)
		s.alone = true
		return s, err
	}
}

// prepareMQTTjs installs MQTT.js beside a copy of the program. One process has all sessions.
func prepareMQTTjs(t *testing.T) opener {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("mqttjs")); err != nil {
		t.Fatal(err)
	}
	npm := exec.Command("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--silent")
	npm.Dir = dir
	run(t, npm)
	node := exec.Command("node", "client.mjs")
	node.Dir = dir
	p := startProcess(t, node)
	return func(_ *testing.T, url string, version int, o options) (session, error) {
		return p.open(url, version, o)
	}
}
