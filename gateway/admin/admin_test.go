package admin

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a server on a free port until the test ends and returns its URL.
func serve(t *testing.T, opts Options) string {
	t.Helper()
	s := New(Config{Address: "127.0.0.1:0"}, opts)
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run() }()
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := s.Close(context.Background()); err != nil {
			t.Error("closed twice:", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return "http://" + s.Addr().String()
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func TestReadyOnlyWhenPublishersCanBeAcknowledged(t *testing.T) {
	h := Health{Status: "starting", NotReady: []string{"spool: recovering"}, Parts: []Part{{Name: "spool", State: "starting"}}}
	url := serve(t, Options{Health: func() Health { return h }})

	f := func(path string, want int) {
		t.Helper()
		status, body := get(t, url+path)
		var got Health
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatalf("%s: %v in %s", path, err, body)
		}
		if status != want || got.Ready != h.Ready || got.Status != h.Status || len(got.NotReady) != len(h.NotReady) {
			t.Errorf("%s: %d %+v, want %d %+v", path, status, got, want, h)
		}
	}
	f("/healthz", 200) // the process lives, also while it recovers
	f("/readyz", 503)
	h = Health{Status: "ok", Ready: true}
	f("/healthz", 200)
	f("/readyz", 200)
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "forebay_test_total", Help: "a test"})
	reg.MustRegister(c)
	url := serve(t, Options{Gatherer: reg})
	if status, body := get(t, url+"/metrics"); status != 200 || !strings.Contains(body, "forebay_test_total 0") {
		t.Errorf("%d %s", status, body)
	}
}

func TestProfilesOnlyWhenAskedFor(t *testing.T) {
	f := func(cfg Config, want int) {
		t.Helper()
		s := New(cfg, Options{})
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap"} {
			w := httptest.NewRecorder()
			s.http.Handler.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost"+path, nil))
			if w.Code != want {
				t.Errorf("profiling %v: %s: %d, want %d", cfg.Profiling, path, w.Code, want)
			}
		}
	}
	f(Config{}, 404)
	f(Config{Profiling: true}, 200)
}

// A request that does not end must not hold a stop, nor make it one that went wrong.
func TestCloseCutsWhoDoesNotEnd(t *testing.T) {
	entered, hang := make(chan struct{}), make(chan struct{})
	s := New(Config{Address: "127.0.0.1:0"}, Options{Health: func() Health {
		close(entered)
		<-hang
		return Health{}
	}})
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() {
		if r, err := http.Get("http://" + s.Addr().String() + "/healthz"); err == nil {
			r.Body.Close()
			t.Errorf("got an answer: %s", r.Status)
		}
	})
	<-entered
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // no grace at all
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
	wg.Wait()
	close(hang)
	http.DefaultClient.CloseIdleConnections()
}

func TestOnlyGet(t *testing.T) {
	url := serve(t, Options{Health: func() Health { return Health{} }})
	r, err := http.Post(url+"/healthz", "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", r.StatusCode)
	}
	if status, _ := get(t, url+"/nothing"); status != 404 {
		t.Errorf("unknown path: %d", status)
	}
}

// A page whose host name is made to lead to this machine does not read the answers.
func TestOnlyNamesOfThisMachine(t *testing.T) {
	f := func(cfg Config, host string, want int) {
		t.Helper()
		next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Host = host
		w := httptest.NewRecorder()
		cfg.guard(next).ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%q, allow_remote %v: %d, want %d", host, cfg.AllowRemote, w.Code, want)
		}
	}
	for _, host := range []string{"127.0.0.1:9600", "localhost:9600", "LocalHost.", "gw.localhost:9600", "[::1]:9600", "[::1]", "192.0.2.1", ""} {
		f(Config{}, host, http.StatusOK)
	}
	for _, host := range []string{"evil.example:9600", "evil.example", "localhost.evil.example:9600", "notlocalhost", "127.0.0.1.evil.example"} {
		f(Config{}, host, http.StatusMisdirectedRequest)
		f(Config{AllowRemote: true}, host, http.StatusOK)
	}
	url := serve(t, Options{Health: func() Health { return Health{} }})
	r, err := http.NewRequest(http.MethodGet, url+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "evil.example"
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("served: %s", answer.Status)
	}
}

func TestPortInUseIsTold(t *testing.T) {
	url := serve(t, Options{})
	s := New(Config{Address: strings.TrimPrefix(url, "http://")}, Options{})
	if err := s.Listen(); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("got %v", err)
	}
}

func TestConfigKeepsToLoopback(t *testing.T) {
	f := func(address string, remote bool, want string) {
		t.Helper()
		err := Config{Address: address, AllowRemote: remote}.Validate()
		got := ""
		if err != nil {
			got = err.Error()
		}
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s, allow_remote %v: %q, want %q", address, remote, got, want)
		}
	}
	f("127.0.0.1:9600", false, "")
	f("127.0.0.1:0", false, "")
	f("[::1]:9600", false, "")
	f("localhost:9600", false, "")
	f("0.0.0.0:9600", true, "")
	f("0.0.0.0:9600", false, "other machines reach")
	f(":9600", false, "other machines reach")
	f("[::]:9600", false, "other machines reach")
	f("192.168.1.7:9600", false, "other machines reach")
	f("gateway.example.com:9600", false, "other machines reach")
	f("127.0.0.1", false, "host:port")
	f("127.0.0.1:http", false, "is not a port")
	f("127.0.0.1:70000", false, "is not a port")
	f("", false, "host:port")
}
