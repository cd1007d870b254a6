package main

import (
	"fmt"
	"math/rand/v2"

	"github.com/forebay-gateway/forebay/spool"
)

// telemetry are the payloads of all loads: what devices send, about 256 bytes, no two alike. They are made before, and shared.
var telemetry, meanPayload = func() (p [16384][]byte, mean float64) {
	rnd := rand.New(rand.NewPCG(1, 2))
	sum := 0
	for i := range p {
		p[i] = fmt.Appendf(nil, `{"device":"pump-%04d","ts":%d,"site":"plant-%d","seq":%d,"temperature":%.2f,"pressure":%.3f,`+
			`"vibration":[%.3f,%.3f,%.3f],"rpm":%d,"state":"%s","battery":%.2f,"rssi":%d,"firmware":"4.12.%d","uptime":%d,"ok":%t}`,
			rnd.IntN(2000), 1_796_000_000_000+int64(i)*17+rnd.Int64N(9), rnd.IntN(4), i, 20+10*rnd.NormFloat64(), 1013+5*rnd.NormFloat64(),
			rnd.Float64(), rnd.Float64(), rnd.Float64(), 1400+rnd.IntN(100), []string{"running", "idle", "stopped"}[rnd.IntN(3)],
			rnd.Float64(), -40-rnd.IntN(50), rnd.IntN(9), rnd.IntN(1_000_000), rnd.IntN(50) > 0)
		sum += len(p[i])
	}
	return p, float64(sum) / float64(len(p))
}()

const devices = 2000

var clientIDs, topics = func() (c, t [devices]string) {
	for i := range c {
		c[i] = fmt.Sprintf("pump-%04d", i)
		t[i] = fmt.Sprintf("plant/%d/line/%02d/pump-%04d/telemetry", i%4, i%23, i)
	}
	return c, t
}()

// record makes the n-th record. Each is new, as the MQTT front makes them: a record belongs to the log.
func record(n int) *spool.Record {
	d := n % devices
	return &spool.Record{Topic: topics[d], ClientID: clientIDs[d], Payload: telemetry[n%len(telemetry)], QoS: 1}
}
