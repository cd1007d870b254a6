package kafka

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Positions of the spools that this one was restored from count up to the restore, whatever they have delivered since; its own count
// as they are, and those of a sister that was restored from the same backup do not count.
func TestPositionsAcrossRestores(t *testing.T) {
	e := &Exactly{epoch: "s~two/m", before: []Epoch{{"s/m", 1000}, {"s~one/m", 1200}}}
	tr := &transactor{e: e, id: "forebay/gw/r/0"}
	positions := make(map[string]uint64)
	for _, r := range []struct {
		epoch, lane string
		at          int
	}{
		{"s/m", "a", 900},
		{"s/m", "a", 1500},
		{"s/m", "b", 700},
		{"s~one/m", "b", 1100},
		{"s~one/m", "c", 5000},
		{"s~sister/m", "d", 400},
		{"s/other", "d", 300},
		{"s~two/m", "b", 1300},
		{"s~two/m", "e", 2000},
	} {
		tr.take(positions, tr.id+"\x00"+r.epoch+"\x00"+r.lane, fmt.Sprint(r.at))
	}
	tr.take(positions, tr.id+"\x00", "the mark")
	tr.take(positions, "forebay/gw/r/1\x00s/m\x00a", "17")
	if got, want := fmt.Sprint(positions), fmt.Sprint(map[string]uint64{"a": 1000, "b": 1300, "c": 1200, "e": 2000}); got != want {
		t.Errorf("positions %s, want %s", got, want)
	}
}

// What Kafka has of the gateway that was backed up, under offsets that the restored one has given to others, is not found.
func TestScanTellsAForkFromWhereItComesFrom(t *testing.T) {
	s := &Scan{Header: "id", Prefix: "gw/default/0/", Suffix: func(o uint64) string {
		if o >= 100 {
			return "~fork"
		}
		return ""
	}}
	for _, id := range []string{"98", "99~fork", "99", "100", "100~fork", "101~other", "102~", "103", "x~fork", "104~fork~fork", "105~fork"} {
		s.look(&kgo.Record{Headers: []kgo.RecordHeader{{Key: "id", Value: []byte("gw/default/0/" + id)}}})
	}
	if got, want := fmt.Sprint(s.found), "[98 99 100 105]"; got != want {
		t.Errorf("found %s, want %s", got, want)
	}
	plain := &Scan{Header: "id", Prefix: "gw/default/0/"}
	for _, id := range []string{"7", "8~fork"} {
		plain.look(&kgo.Record{Headers: []kgo.RecordHeader{{Key: "id", Value: []byte("gw/default/0/" + id)}}})
	}
	if got := fmt.Sprint(plain.found); got != "[7]" {
		t.Errorf("without forks: %s", got)
	}
}
