package downlink

import (
	"testing"

	"github.com/forebay-gateway/forebay/bridge/kafka"
)

// Workers move positions while the session looks at topics.
func TestLookingAtTopicsGoesWithMovingPositions(t *testing.T) {
	d := &downlink{cfg: commands(), places: make(map[kafka.Partition]place)}
	d.known = known{Version: 1, Topics: d.cfg.looksFor()}
	for n := range int32(500) {
		d.places[kafka.Partition{Topic: "commands", N: n}] = place{}
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		p := &partition{d: d, Partition: kafka.Partition{Topic: "commands", N: 7}}
		for {
			select {
			case <-stop:
				return
			default:
			}
			p.at.next++
			if ok, err := p.append(t.Context(), func() error { return nil }); !ok || err != nil {
				t.Error(err)
				return
			}
		}
	}()
	s := &session{d: d, ctx: t.Context()}
	for range 2000 {
		if err := s.begin(nil); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	<-ended
}
