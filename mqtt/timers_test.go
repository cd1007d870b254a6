package mqtt

import (
	"fmt"
	"testing"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// Sessions that come and go, or end, leave nothing behind that waits for their expiry.
func TestReturningSessionsLeaveNoTimers(t *testing.T) {
	srv, _ := faulty(t, nil)
	f := func(resume bool, want int) {
		t.Helper()
		for i := range 30 {
			c := join(t, srv, mqtttest.Connect{ID: fmt.Sprint(i % 3), Properties: hour, Resume: resume})
			c.Disconnect()
		}
		srv.timers.mu.Lock()
		defer srv.timers.mu.Unlock()
		if n := len(srv.timers.heap); n > want || len(srv.timers.at) != n {
			t.Errorf("%d timers, %d in the index, want %d", n, len(srv.timers.at), want)
		}
	}
	f(true, 3)
	f(false, 3)
	for i := range 3 {
		join(t, srv, mqtttest.Connect{ID: fmt.Sprint(i)})
	}
	srv.timers.mu.Lock()
	defer srv.timers.mu.Unlock()
	if n := len(srv.timers.heap); n != 0 {
		t.Errorf("%d timers while all are connected", n)
	}
}
