package mqtt_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"runtime"
	"testing"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// An idle TLS connection costs its state, not its handshake. Clients live in the same process, so that what is compared is the
// difference to plain connections of the same clients, measured by the heap and the stacks in use.
func TestIdleTLSConnectionIsSmall(t *testing.T) {
	if testing.Short() {
		t.Skip("measures memory")
	}
	s := secure(t)
	const n = 500
	inUse := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	cert := s.clients.Issue("device")
	cost := func(listener string, cfg *tls.Config) int {
		before := inUse()
		for i := range n {
			var nc net.Conn
			var err error
			if cfg == nil {
				nc, err = net.Dial("tcp", s.srv.Addr(listener).String())
			} else {
				nc, err = tls.Dial("tcp", s.srv.Addr(listener).String(), cfg)
			}
			if err != nil {
				t.Fatal(err)
			}
			c := mqtttest.NewClient(t, nc)
			c.Connect(mqtttest.Connect{ID: fmt.Sprint(listener, i)})
		}
		return int(inUse()-before) / n
	}
	plain := cost("tcp", nil)
	for _, listener := range []string{"tls", "mtls"} {
		got := cost(listener, s.config(cert))
		t.Logf("%s: %d bytes for both ends together, plain %d", listener, got, plain)
		if got-plain > 60<<10 { // 30 KiB for each end
			t.Errorf("%s: TLS costs %d bytes", listener, got-plain)
		}
	}
}
