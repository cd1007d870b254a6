package bridge

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/forebay-gateway/forebay/bridge/kafka"
)

// What changes while an entry is on its way to the disk must not be forgotten: an entry that stays behind sends the lane back
// to where it once was.
func TestPositionsOnTheirWayAreReplacedWhenTheLaneChanges(t *testing.T) {
	tests := []struct {
		name   string
		change func(f *feeder, l *lane)
		want   func(key, value string) bool
	}{
		{"the whole becomes lanes", func(f *feeder, l *lane) { f.spreadLocked(l.out, 2) }, func(key, value string) bool {
			return !strings.HasSuffix(key, "/-1") && strings.HasPrefix(value, positionsVersion+" d 0 2 ")
		}},
		{"the lane is level again", func(f *feeder, l *lane) { f.attachLocked(l) }, func(_, value string) bool {
			return strings.HasPrefix(value, positionsVersion+" a ")
		}},
		{"the lane is given up", func(f *feeder, l *lane) { f.removeLocked(l) }, func(string, string) bool { return false }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, err := New(t.Context(), Config{
					Upstreams: []kafka.Config{{Name: "main", Brokers: []string{"127.0.0.1:1"}}}, Routes: []RouteConfig{{Name: "all", Topic: "t", Stream: "default"}},
				}, Options{Log: newMemLog(map[string]int{"default": 1}), GatewayID: "gw"})
				if err != nil {
					t.Fatal(err)
				}
				f := b.feeders()[0]
				state := make(map[string]string)
				save := func(during func()) {
					changes, saved := f.collect()
					during()
					for _, c := range changes {
						if delete(state, c.Key); c.Value != nil {
							state[c.Key] = string(c.Value)
						}
					}
					f.stored(saved)
				}
				f.mu.Lock()
				l := f.wholeLocked(f.openLocked("t"))
				f.detachLocked(l, 0)
				f.mu.Unlock()
				save(func() {
					f.mu.Lock()
					tt.change(f, l)
					f.mu.Unlock()
				})
				if len(state) != 1 {
					t.Fatalf("%v, want the entry that was on its way", state)
				}
				save(func() {})
				for key, value := range state {
					if !tt.want(key, value) {
						t.Errorf("%q = %q is left", key, value)
					}
				}
				if err := b.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
