package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

func TestParseReadsTheCommandLine(t *testing.T) {
	o, err := parse(strings.Fields("--mqtt h:1 --transport ws --kafka a:1,b:2 --topic x,y --devices 7 --rate 50 "+
		"--profile bursty:1s:0.5 --qos 0:1,2:3 --payload 300 --window 9 --count 10 --subscribers 2 --subscribe-qos 1 --report r"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c := o.cfg
	if c.Broker != "ws://h:1" || len(c.Kafka) != 2 || len(c.KafkaTopic) != 2 || c.Devices != 7 || c.Rate != 50 || c.Profile.Period != time.Second ||
		c.Mix != (fleet.Mix{1, 0, 3}) || c.Payload != 300 || c.Window != 9 || c.Count != 10 || c.Duration != 0 || c.Subscribers != 2 || c.SubscriberQoS != 1 || o.report != "r" {
		t.Errorf("%+v", o)
	}
	if o, err := parse([]string{"--mqtt", "h:1"}, io.Discard); err != nil || o.cfg.Duration != defaultDuration || len(o.cfg.KafkaTopic) != 0 {
		t.Errorf("no other arguments: %+v, %v", o, err)
	}
}

func TestWrongUsageExitsWithTwo(t *testing.T) {
	f := func(args, want string) {
		t.Helper()
		out, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		code := run(strings.Fields(args), out, out)
		text, err := os.ReadFile(out.Name())
		if err != nil || code != usage || !bytes.Contains(text, []byte(want)) {
			t.Errorf("%s: exit %d, %q does not say %q", args, code, text, want)
		}
	}
	f("--qos 7", `QoS mix "7"`)
	f("--profile calm", `profile "calm"`)
	f("--transport quic", `transport "quic"`)
	f("--subscribe-qos 3", "subscribe-qos 3")
	f("", "no broker: give --mqtt")
	f("--transport ws", "no broker: give --mqtt")
	f("--mqtt 127.0.0.1:1 --payload 5", "payload: 5 is not in 96..")
	f("--nonsense", "nonsense")
	f("extra", `unexpected argument "extra"`)
}

func TestUnreachableBrokerExitsWithOne(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if code := run(strings.Fields("--mqtt 127.0.0.1:1 --drain 50ms --devices 1"), null, null); code != broken {
		t.Errorf("exit %d", code)
	}
}
