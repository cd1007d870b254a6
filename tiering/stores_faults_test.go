package tiering

import (
	"bytes"
	"context"
	"fmt"
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
func TestStoresS3BadConnectionsLoseNothing(t *testing.T) {
	server := storetest.StartS3(t)
	proxy := storetest.StartProxy(t, server.Addr)
	for _, f := range []struct {
		name, kind string
		up         bool
		attributes map[string]any
		passes     bool // uploads succeed with it
	}{
		{"slow to answer", "latency", false, map[string]any{"latency": 100, "jitter": 50}, true},
		{"in small pieces", "slicer", true, map[string]any{"average_size": 512, "size_variation": 256, "delay": 10}, true},
		{"cut on the way up", "limit_data", true, map[string]any{"bytes": 10_000}, false},
		{"cut on the way back", "limit_data", false, map[string]any{"bytes": 10_000}, false},
		{"reset", "reset_peer", false, map[string]any{"timeout": 20}, false},
		{"half-open", "timeout", true, map[string]any{"timeout": 0}, false},
		{"answers that never come", "timeout", false, map[string]any{"timeout": 0}, false},
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
			if !f.passes && err == nil {
				t.Error("a round succeeds: the test shows nothing")
			}
			if list, _ := r.s.Sealed(stream); !f.passes && len(list) < 2 {
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
	var fault atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
	addr := between(t, server.Addr, &fault)
	for _, f := range []struct {
		name, reason string
		fault        func(w http.ResponseWriter, r *http.Request) bool
	}{
		{"503", "unreachable", func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Type", "application/xml")
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>`)
			return true
		}},
		{"a clock that is a day behind", "denied", func(_ http.ResponseWriter, r *http.Request) bool { // what the server says to it is its own
			r.Header.Set("X-Amz-Date", time.Now().Add(-24*time.Hour).UTC().Format("20060102T150405Z"))
			return false
		}},
		{"credentials that are unknown", "denied", func(_ http.ResponseWriter, r *http.Request) bool {
			r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), "Credential=forebay/", "Credential=expired/", 1))
			return false
		}},
		{"a bucket that is gone", "no_bucket", func(_ http.ResponseWriter, r *http.Request) bool { return false }},
	} {
		t.Run(f.name, func(t *testing.T) {
			r := realRig(t, server, addr, nil)
			r.segment(500)
			r.round()
			r.segment(500)
			bucket := filepath.Join(server.Dir, "forebay")
			if f.reason == "no_bucket" {
				if err := os.Rename(bucket, bucket+"-away"); err != nil {
					t.Fatal(err)
				}
			}
			fault.Store(&f.fault)
			err := r.tier.Round(t.Context())
			if label, _ := reason(err); label != f.reason {
				t.Errorf("its reason is %q, want %q: %v", label, f.reason, err)
			}
			if list, _ := r.s.Sealed(stream); len(list) != 2 {
				t.Errorf("%d local segments, want 2", len(list))
			}
			fault.Store(nil)
			if f.reason == "no_bucket" {
				if err := os.Rename(bucket+"-away", bucket); err != nil {
					t.Fatal(err)
				}
			}
			r.settled()
			r.once()
			r.goCold()
		})
	}
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
func TestStoresS3PrefixOfAnotherGateway(t *testing.T) {
	server := storetest.StartS3(t)
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
