package mqtt_test

import (
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// Sessions and delayed wills end when their time has passed, whatever the wall clock is set to meanwhile, over a restart too.
func TestWallClockThatIsSetEndsNoSession(t *testing.T) {
	const year = 365 * 24 * time.Hour
	s := start(t)
	watch := s.connect(t, keep("watch"))
	watch.Subscribe("w", 1)
	watch.Close()
	s.connect(t, mqtttest.Connect{ID: "c", Resume: true, Properties: forAnHour, Will: &mqtttest.Publish{Topic: "w", QoS: 1, Payload: "gone", Properties: afterAnHour}}).Close()
	for _, d := range []time.Duration{year, -2 * year} {
		s.step(d)
		s.restart(t)
		watch = s.resume(t, keep("watch"))
		watch.Ping() // no will before
		watch.Close()
	}
	s.pass(30 * time.Minute)
	watch = s.resume(t, keep("watch"))
	s.pass(31 * time.Minute)
	watch.Receive(mqtttest.Publish{Topic: "w", QoS: 1, Payload: "gone"})
	if s.dial(t).Connect(mqtttest.Connect{ID: "c", Resume: true}).SessionPresent {
		t.Error("a session has outlived its expiry")
	}
}
