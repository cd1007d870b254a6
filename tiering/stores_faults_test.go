package tiering

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering/store"
	"github.com/forebay-gateway/forebay/tiering/store/storetest"
)

// realRig is a rig whose store is a real server, in a prefix of its own.
func realRig(t *testing.T, server storetest.Server, addr string, edit func(*rig)) *rig {
	t.Helper()
	at := strings.Replace(server.At(addr), "edge/one", strings.ReplaceAll(t.Name(), "/", "-"), 1)
	r := newRig(t, func(r *rig) {
		r.url = at
		if edit != nil {
			edit(r)
		}
	})
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	return r
}

// settled runs rounds until the store has everything that is sealed: as often as Run would.
func (r *rig) settled() {
	r.t.Helper()
	var last error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		if last = r.tier.Round(r.t.Context()); last == nil && len(r.tier.count(r.tier.byName[stream])) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond) // of a poll
	}
	r.t.Fatalf("not everything is stored after 30 s: %v", last)
}

// once wants each part and each entry to have been stored once, and nothing but what the manifest names to be there.
func (r *rig) once() {
	r.t.Helper()
	m := r.tier.byName[stream].m.Load()
	want := map[string]bool{}
	for i := range m.Segments {
		seg := &m.Segments[i]
		for part := range seg.Parts() {
			want[fmt.Sprintf("%s/seg/%016x.db.%04d", stream, seg.Sequence, part)] = true
		}
		want[fmt.Sprintf("%s/seg/%016x.json", stream, seg.Sequence)] = true
	}
	for key := range want {
		if n := r.faults.Puts(key); n > 1 {
			r.t.Errorf("%s was stored %d times", key, n)
		}
	}
	if err := r.faults.List(r.t.Context(), stream+"/seg/", func(o store.Object) error {
		if !want[o.Key] {
			r.t.Errorf("%s is nobody's", o.Key)
		}
		delete(want, o.Key)
		return nil
	}); err != nil {
		r.t.Fatal(err)
	}
	if len(want) > 0 {
		r.t.Errorf("not in the store: %v", want)
	}
}

// goCold has the local copies go and reads everything from the store.
func (r *rig) goCold() {
	r.t.Helper()
	r.advance(2 * time.Hour)
	r.settled()
	if list, _ := r.s.Sealed(stream); len(list) != 0 {
		r.t.Errorf("%d local copies stay", len(list))
	}
	r.all(0)
}

// A connection that is slow, cut or dead costs tries, and no record; what is stored is not sent again, and no local copy goes before
// the stored one has been read back.
func TestStoresS3BadConnectionsLoseNothing(t *testing.T) { badConnections(t, storetest.StartS3(t)) }

func TestStoresGCSBadConnectionsLoseNothing(t *testing.T) { badConnections(t, storetest.StartGCS(t)) }

func TestStoresAzureBadConnectionsLoseNothing(t *testing.T) {
	badConnections(t, storetest.StartAzure(t))
}

func badConnections(t *testing.T, server storetest.Server) {
	proxy := storetest.StartProxy(t, server.Addr)
	for _, f := range []struct {
		name, kind string
		up         bool
		attributes map[string]any
		fails      bool // no upload can succeed with it
	}{
		{"slow to answer", "latency", false, map[string]any{"latency": 100, "jitter": 50}, false},
		{"in small pieces", "slicer", true, map[string]any{"average_size": 512, "size_variation": 256, "delay": 10}, false},
		{"cut on the way up", "limit_data", true, map[string]any{"bytes": 10_000}, true},
		{"cut on the way back", "limit_data", false, map[string]any{"bytes": 10_000}, false},
		{"reset", "reset_peer", false, map[string]any{"timeout": 20}, true},
		{"half-open", "timeout", true, map[string]any{"timeout": 0}, true},
		{"answers that never come", "timeout", false, map[string]any{"timeout": 0}, true},
	} {
		t.Run(f.name, func(t *testing.T) {
			r := realRig(t, server, proxy.Addr, nil)
			r.segment(500)
			r.round()
			r.advance(2 * time.Hour)
			r.segment(500)
			r.segment(500)
			proxy.Fault(f.kind, f.up, f.attributes)
			ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
			err := r.tier.Round(ctx)
			cancel()
			if f.fails && err == nil {
				t.Error("a round succeeds: the test shows nothing")
			}
			if list, _ := r.s.Sealed(stream); f.fails && len(list) < 2 {
				t.Errorf("%d local segments: of those that are not stored one is gone", len(list))
			}
			proxy.Heal(f.kind, f.up)
			r.settled()
			r.once()
			r.goCold()

			// And on the way back: a reader goes on where it was.
			r.restart(nil)
			proxy.Fault(f.kind, f.up, f.attributes)
			heal := time.AfterFunc(300*time.Millisecond, func() { proxy.Heal(f.kind, f.up) })
			r.all(0)
			if heal.Stop() {
				proxy.Heal(f.kind, f.up)
			}
		})
	}
}

// While a store hangs, or takes 10 KiB a second, records are acknowledged, the spool's own limits count, and Close does not wait for it.
func TestStoresS3ThatHangHoldUploadsOnly(t *testing.T) {
	server := storetest.StartS3(t)
	proxy := storetest.StartProxy(t, server.Addr)
	for _, f := range []struct {
		name, kind string
		attributes map[string]any
	}{
		{"hangs", "timeout", map[string]any{"timeout": 0}},
		{"10 KiB a second", "bandwidth", map[string]any{"rate": 10}},
	} {
		t.Run(f.name, func(t *testing.T) {
			r := realRig(t, server, proxy.Addr, func(r *rig) {
				r.scfg.Segment.MaxSize = 1 << 20
				r.scfg.Streams[0].MaxSize = 2 << 20
				r.scfg.Streams[0].WhenFull = spool.FullDropOldest
				r.cfg.Streams[0].WhenNotStored = NotStoredDrop
			})
			r.round() // the prefix is ours
			proxy.Fault(f.kind, true, f.attributes)
			ended := make(chan error, 1)
			go func() { ended <- r.tier.Run(context.Background()) }()
			for range 40 { // 6 MB
				r.segment(500)
			}
			var dropped uint64
			for deadline := time.Now().Add(30 * time.Second); dropped == 0 && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
				start, _ := r.s.Bounds(stream, 0)
				dropped = uint64(start)
			}
			if dropped == 0 {
				t.Error("max_size of the stream does not count while the store hangs")
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if err := r.tier.Close(ctx); err != nil {
				t.Errorf("close: %v", err)
			}
			if err := <-ended; err != nil {
				t.Errorf("run: %v", err)
			}
			proxy.Heal(f.kind, true)
		})
	}
}

// between is an HTTP proxy in front of a server that answers, or changes, as the test says.
func between(t *testing.T, upstream string, fault *atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]) string {
	t.Helper()
	u, err := url.Parse("http://" + upstream)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(pr *httputil.ProxyRequest) {
		pr.SetURL(u)
		pr.Out.Host = pr.In.Host // it is signed
	}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := fault.Load(); f != nil && (*f)(w, r) {
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// What a server refuses for a while (503, a clock that is wrong, credentials that have expired, a bucket that is gone) is told for what it
// is, holds uploads only, and goes on by itself when it is over.
func TestStoresS3RefusalsPass(t *testing.T) {
	server := storetest.StartS3(t)
	bucket := filepath.Join(server.Dir, "forebay")
	rename := func(from, to string) func() {
		return func() {
			if err := os.Rename(from, to); err != nil {
				t.Fatal(err)
			}
		}
	}
	refusals(t, server, []refusal{
		{name: "503", reason: "unreachable", fault: answer(http.StatusServiceUnavailable, "application/xml",
			`<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>`)},
		{name: "a clock that is a day behind", reason: "denied", fault: func(_ http.ResponseWriter, r *http.Request) bool { // what the server says to it is its own
			r.Header.Set("X-Amz-Date", time.Now().Add(-24*time.Hour).UTC().Format("20060102T150405Z"))
			return false
		}},
		{name: "credentials that are unknown", reason: "denied", fault: func(_ http.ResponseWriter, r *http.Request) bool {
			r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), "Credential=forebay/", "Credential=expired/", 1))
			return false
		}},
		{name: "a bucket that is gone", reason: "no_bucket", begin: rename(bucket, bucket+"-away"), end: rename(bucket+"-away", bucket)},
	})
}

func TestStoresGCSRefusalsPass(t *testing.T) {
	said := func(code int, text string) func(http.ResponseWriter, *http.Request) bool {
		return answer(code, "application/json", fmt.Sprintf(`{"error":{"code":%d,"message":%q,"errors":[{"message":%q,"domain":"global","reason":"test"}]}}`, code, text, text))
	}
	refusals(t, storetest.StartGCS(t), []refusal{
		{name: "503", reason: "unreachable", fault: said(http.StatusServiceUnavailable, "We encountered an internal error. Please try again.")},
		{name: "429", reason: "unreachable", fault: said(http.StatusTooManyRequests, "The rate of requests exceeds the limit.")},
		{name: "a token that has expired", reason: "denied", fault: said(http.StatusUnauthorized, "Invalid Credentials")},
		{name: "too few rights", reason: "denied", fault: said(http.StatusForbidden, "edge does not have storage.objects.create access")},
		{name: "a bucket that is gone", reason: "no_bucket", fault: said(http.StatusNotFound, "The specified bucket does not exist.")},
	})
}

func TestStoresAzureRefusalsPass(t *testing.T) {
	refusals(t, storetest.StartAzure(t), []refusal{
		{name: "503", reason: "unreachable", fault: func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("x-ms-error-code", "ServerBusy")
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}},
		{name: "a clock that is a day behind", reason: "denied", fault: func(_ http.ResponseWriter, r *http.Request) bool {
			r.Header.Set("X-Ms-Date", time.Now().Add(-24*time.Hour).UTC().Format(http.TimeFormat))
			return false
		}},
		{name: "a key that was changed", reason: "denied", fault: func(_ http.ResponseWriter, r *http.Request) bool {
			r.Header.Set("Authorization", "SharedKey devstoreaccount1:"+strings.Repeat("A", 43)+"=")
			return false
		}},
		{name: "a container that is gone", reason: "no_bucket", fault: func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("x-ms-error-code", "ContainerNotFound")
			w.WriteHeader(http.StatusNotFound)
			return true
		}},
	})
}

type refusal struct {
	name, reason string
	fault        func(w http.ResponseWriter, r *http.Request) bool // nil: begin and end do it
	begin, end   func()
}

// answer answers every request with that.
func answer(code int, kind, body string) func(w http.ResponseWriter, _ *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(code)
		fmt.Fprint(w, body)
		return true
	}
}

func refusals(t *testing.T, server storetest.Server, list []refusal) {
	var fault atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
	addr := between(t, server.Addr, &fault)
	for _, f := range list {
		t.Run(f.name, func(t *testing.T) {
			r := realRig(t, server, addr, nil)
			r.segment(500)
			r.round()
			r.segment(500)
			begin, end := func() {
				if f.begin != nil {
					f.begin()
				} else {
					fault.Store(&f.fault)
				}
			}, func() {
				if fault.Store(nil); f.end != nil {
					f.end()
				}
			}
			begin()
			err := r.tier.Round(t.Context())
			if label, _ := reason(err); label != f.reason {
				t.Errorf("its reason is %q, want %q: %v", label, f.reason, err)
			}
			if list, _ := r.s.Sealed(stream); len(list) != 2 {
				t.Errorf("%d local segments, want 2", len(list))
			}
			end()
			r.settled()
			r.once()
			r.goCold()

			r.restart(nil) // with an empty cache
			rd, err := r.tier.NewReader(stream, 0, 0, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer rd.Close()
			begin()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // it tries a 503 for longer
			if b, ok, err := rd.try(ctx); ok || err == nil {
				t.Errorf("a reader is told %+v: %v", b, err)
			}
			cancel()
			end()
			r.all(0)
		})
	}
}

// Bytes that change on their way, up or back, are found before the local copy goes, whatever the server and its client check themselves.
func TestStoresS3ChangedBytesAreFound(t *testing.T)    { changedBytes(t, storetest.StartS3(t)) }
func TestStoresGCSChangedBytesAreFound(t *testing.T)   { changedBytes(t, storetest.StartGCS(t)) }
func TestStoresAzureChangedBytesAreFound(t *testing.T) { changedBytes(t, storetest.StartAzure(t)) }

func changedBytes(t *testing.T, server storetest.Server) {
	var fault atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
	addr := between(t, server.Addr, &fault)
	flip := func(b []byte) {
		if len(b) > 10_000 { // a part, not an entry
			b[len(b)/2] ^= 1
		}
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	for way, f := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"up": func(_ http.ResponseWriter, r *http.Request) bool {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return true
			}
			flip(b)
			r.Body = io.NopCloser(bytes.NewReader(b))
			return false
		},
		"back": func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet {
				return false
			}
			out := r.Clone(r.Context())
			out.URL.Scheme, out.URL.Host, out.RequestURI = "http", server.Addr, ""
			res, err := transport.RoundTrip(out)
			if err != nil {
				w.WriteHeader(http.StatusBadGateway)
				return true
			}
			defer res.Body.Close()
			b, _ := io.ReadAll(res.Body)
			flip(b)
			for name, values := range res.Header {
				w.Header()[name] = values
			}
			w.WriteHeader(res.StatusCode)
			_, _ = w.Write(b)
			return true
		},
	} {
		t.Run(way, func(t *testing.T) {
			r := realRig(t, server, addr, nil)
			r.segment(500)
			fault.Store(&f)
			r.advance(2 * time.Hour)
			for range 2 {
				_ = r.tier.Round(t.Context())
			}
			if list, _ := r.s.Sealed(stream); len(list) != 1 || len(r.tier.count(r.tier.byName[stream])) != 1 {
				t.Errorf("%d local segments and %v behind: what was changed counts as stored", len(list), r.tier.count(r.tier.byName[stream]))
			}
			fault.Store(nil)
			r.settled()
			r.goCold()
		})
	}
}

// A server that takes a connection and then says nothing ends a round after a while, with its name, so that health tells of it.
func TestStoresS3SilentServerIsTold(t *testing.T)    { silent(t, storetest.StartS3(t)) }
func TestStoresGCSSilentServerIsTold(t *testing.T)   { silent(t, storetest.StartGCS(t)) }
func TestStoresAzureSilentServerIsTold(t *testing.T) { silent(t, storetest.StartAzure(t)) }

func silent(t *testing.T, server storetest.Server) {
	proxy := storetest.StartProxy(t, server.Addr)
	r := realRig(t, server, proxy.Addr, func(r *rig) { r.options.Patience = 2 * time.Second })
	r.segment(500)
	r.settled()
	r.segment(500)
	proxy.Fault("timeout", false, map[string]any{"timeout": 0})
	label, err := "", error(nil)
	for i := 0; i < 10 && label != "timeout"; i++ { // connections that there were may break instead
		err = r.tier.Round(t.Context())
		label, _ = reason(err)
	}
	if label != "timeout" {
		t.Errorf("its reason is %q: %v", label, err)
	}
	if list, _ := r.s.Sealed(stream); len(list) != 2 {
		t.Errorf("%d local segments, want 2", len(list))
	}
	proxy.Heal("timeout", false)
	r.settled()
	r.once()
	r.goCold()
}

// What somebody changes in the bucket behind our back is told as damage of that segment, and what is removed there before the local
// copy goes is stored again.
func TestStoresS3ObjectsChangedBehindOurBack(t *testing.T) {
	server := storetest.StartS3(t)
	r := realRig(t, server, server.Addr, nil)
	for range 3 {
		r.segment(500)
	}
	r.round()
	part := func(i int) string {
		seg := r.tier.byName[stream].m.Load().Segments[i]
		found, err := filepath.Glob(filepath.Join(server.Dir, "forebay", "*", stream, "seg", fmt.Sprintf("%016x.db.0000", seg.Sequence)))
		if err != nil || len(found) != 1 {
			t.Fatalf("%v: %v", found, err)
		}
		return found[0]
	}
	if err := os.Remove(part(0)); err != nil {
		t.Fatal(err)
	}
	r.advance(2 * time.Hour)
	r.settled()
	if list, _ := r.s.Sealed(stream); len(list) != 0 {
		t.Fatalf("%d local copies stay", len(list))
	}
	r.all(0)

	b := readFile(t, part(1))
	changed := bytes.Clone(b)
	changed[len(changed)/2] ^= 1
	writeFile(t, part(1), changed)
	r.restart(nil) // with an empty cache
	r.all(2)       // one for each partition
	if n := r.tier.byName[stream].damagedReads.Load(); n == 0 {
		t.Error("it is not counted")
	}
	writeFile(t, part(1), b)
	r.all(0)
}

// Two gateways that are given one prefix: the second stores nothing, and says whose it is.
func TestStoresS3PrefixOfAnotherGateway(t *testing.T) { twoOnOnePrefix(t, storetest.StartS3(t)) }

func TestStoresGCSPrefixOfAnotherGateway(t *testing.T) { twoOnOnePrefix(t, storetest.StartGCS(t)) }

func TestStoresAzurePrefixOfAnotherGateway(t *testing.T) { twoOnOnePrefix(t, storetest.StartAzure(t)) }

func twoOnOnePrefix(t *testing.T, server storetest.Server) {
	first := realRig(t, server, server.Addr, nil)
	first.segment(500)
	first.round()
	second := realRig(t, server, server.Addr, nil)
	second.segment(500)
	err := second.tier.Round(t.Context())
	if label, hint := reason(err); label != "owned" || !strings.Contains(hint, "adopt") {
		t.Errorf("%s: %v", label, err)
	}
	if n := second.faults.Puts("/seg/"); n != 0 {
		t.Errorf("the second one has stored %d objects", n)
	}
	if list, _ := second.s.Sealed(stream); len(list) != 1 {
		t.Errorf("%d local segments of the second", len(list))
	}
	first.goCold()
}
