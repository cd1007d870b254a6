package mqtt_test

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// Rules, users and bans are read again under load, faults among them, and nobody who may stay is disconnected.
func TestReloadsUnderLoad(t *testing.T) {
	rules := "allow all topic=t/# user=ann\n"
	g := guard(t, rules, func(c *mqtt.Config) {
		c.Auth.Ban.File = t.TempDir() + "/bans"
		_ = os.WriteFile(c.Auth.Ban.File, nil, 0o600)
	})
	stop := make(chan struct{})
	var work sync.WaitGroup
	for i := range 2 {
		c := g.connect(t, mqtttest.Connect{ID: fmt.Sprint("c", i), UserName: "ann", Password: "ann"})
		topic := fmt.Sprint("t/", i)
		sub := g.connect(t, mqtttest.Connect{ID: fmt.Sprint("s", i), UserName: "ann", Password: "ann"})
		sub.Subscribe(topic, 1)
		work.Go(func() { exchange(c, sub, topic, stop) })
	}
	rounds := long(100, 1000)
	for i := range rounds {
		switch i % 4 {
		case 0:
			g.rules(t, fmt.Sprintf("# %d\ndeny all topic=other/#\n%s", i, rules))
		case 1:
			g.setPassword(t, "bob", fmt.Sprint("pw", i))
		case 2:
			if err := os.WriteFile(g.cfg.Auth.Ban.File, fmt.Appendf(nil, "client=x%d\n", i), 0o600); err != nil {
				t.Fatal(err)
			}
		case 3:
			g.rules(t, "allow everything\n") // must change nothing
		}
		if err := g.srv.ReloadAuth(); (err != nil) != (i%4 == 3) {
			t.Fatalf("round %d: %v", i, err)
		}
		if i%4 == 3 {
			g.rules(t, rules)
		}
	}
	close(stop)
	work.Wait()
	if n := g.metric(t, "auth_reloads_total", "failed"); n != float64(rounds/4) {
		t.Errorf("%v reloads failed, want %d", n, rounds/4)
	}
}

// exchange sends messages from c to sub until stop is closed, and then makes sure that both are still connected.
func exchange(c, sub *mqtttest.Client, topic string, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			c.Ping()
			sub.Ping()
			return
		default:
			c.Publish(mqtttest.Publish{Topic: topic, QoS: 1, Payload: "x"})
			sub.Receive(mqtttest.Publish{Topic: topic, QoS: 1, Payload: "x"})
		}
	}
}
