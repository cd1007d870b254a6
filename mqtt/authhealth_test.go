package mqtt_test

import (
	"os"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// A file of mqtt.auth with a fault is told until it is mended, whoever comes and goes meanwhile and however often it is read.
func TestHealthTellsOfAFaultyAuthFileUntilItIsMended(t *testing.T) {
	g := guard(t, "allow all topic=t/# user=ann\n")
	well := func() {
		t.Helper()
		if err := g.srv.Health(); err != nil {
			t.Errorf("health: %v", err)
		}
		if n := g.metric(t, "auth_files_faulty", ""); n != 0 {
			t.Errorf("%v files are faulty", n)
		}
	}
	well()
	for _, file := range []string{g.acl, g.users} {
		good, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("what is this\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		first := ""
		for range 3 {
			if err := g.srv.ReloadAuth(); err == nil {
				t.Fatalf("%s: no fault", file)
			}
			err := g.srv.Health()
			if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "since") {
				t.Fatalf("health with a fault in %s: %v", file, err)
			}
			if first == "" {
				first = err.Error()
			}
			if err.Error() != first {
				t.Errorf("%v, and %s before", err, first)
			}
			if n := g.metric(t, "auth_files_faulty", ""); n != 1 {
				t.Errorf("%v files are faulty, want 1", n)
			}
			g.connect(t, mqtttest.Connect{ID: "c", UserName: "ann", Password: "ann"}).Disconnect() // by the old content
		}
		if err := os.WriteFile(file, good, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := g.srv.ReloadAuth(); err != nil {
			t.Fatal(err)
		}
		well()
	}
}
