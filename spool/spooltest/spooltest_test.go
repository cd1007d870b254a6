package spooltest

import (
	"fmt"
	"testing"

	"github.com/forebay-gateway/forebay/spool"
)

type done chan error

func (d done) Durable(_ *spool.Record, err error) { d <- err }

func TestOpenVerifiesWhatTheTestLeft(t *testing.T) {
	s := Open(t, spool.StreamConfig{Name: "plant", Filters: []string{"plant/#"}})
	for i := range 1000 {
		if err := s.Append(t.Context(), spool.Entry{Record: &spool.Record{Topic: fmt.Sprintf("plant/%d", i%10), ClientID: fmt.Sprint(i % 17), Payload: make([]byte, 500)}}); err != nil {
			t.Fatal(err)
		}
	}
	d := make(done, 1)
	if err := s.Append(t.Context(), spool.Entry{Record: &spool.Record{Topic: "other"}, Done: d}); err != nil {
		t.Fatal(err)
	}
	if err := <-d; err != nil {
		t.Fatal(err)
	}
}
