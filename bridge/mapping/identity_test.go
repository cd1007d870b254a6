package mapping

import (
	"testing"

	"github.com/forebay-gateway/forebay/spool"
)

// What came before a restore keeps the identity that it had in the gateway that was backed up; what came after is not taken for what that
// one has given the same offset to.
func TestIdentityAcrossRestores(t *testing.T) {
	who := Identity{Gateway: "gw", Stream: "default", Forks: []spool.Fork{
		{ID: "one", Ends: map[string][]spool.Offset{"default": {100, 200}}},
		{ID: "two", Ends: map[string][]spool.Offset{"default": {150, 200, 7}}},
	}}
	for _, f := range []struct {
		partition uint16
		offset    spool.Offset
		want      string
	}{
		{0, 99, "gw/default/0/99"},
		{0, 100, "gw/default/0/100~one"},
		{0, 149, "gw/default/0/149~one"},
		{0, 150, "gw/default/0/150~two"},
		{1, 199, "gw/default/1/199"},
		{1, 200, "gw/default/1/200~two"},
		{2, 6, "gw/default/2/6~one"}, // the partition came after the first restore
		{3, 0, "gw/default/3/0~two"},
	} {
		if got := string(who.AppendID(nil, f.partition, f.offset)); got != f.want {
			t.Errorf("%d/%d: %s, want %s", f.partition, f.offset, got, f.want)
		}
	}
}
