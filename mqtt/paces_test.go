package mqtt

import (
	"fmt"
	"testing"
	"time"
)

// Paces of clients that are gone are kept while they say something, and in bounds.
func TestPacesAreBounded(t *testing.T) {
	var k paces
	made := func(each time.Duration) *pace {
		p := newPace(limitClientRate, RateConfig{Messages: int(time.Second / each)}, time.Millisecond)
		p.messages.take(monotonic(), 1)
		return p
	}
	k.put("none", nil)
	k.put("whole", newPace(limitClientRate, RateConfig{Messages: 1}, time.Second))
	if k.take("none") != nil || k.take("whole") != nil {
		t.Error("kept what says nothing")
	}
	own := made(time.Second)
	k.put("c", own)
	if k.take("c") != own || k.take("c") != nil {
		t.Error("not kept, or twice")
	}
	for i := range 3 * pacesKept {
		k.put(fmt.Sprint(i), made(time.Second))
		if len(k.kept) > pacesKept {
			t.Fatalf("%d after %d", len(k.kept), i)
		}
	}
}
