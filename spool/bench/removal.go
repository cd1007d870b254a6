package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/segment"
)

const (
	removalTarget = 15 // ms above the worst of the same time without removal
	removalSize   = 256 << 20
	removalRate   = 2000
)

// measureRemoval compares the worst acknowledgement in a window of time without removal, with a segment removed as the spool
// does, and with the same file unlinked at once.
func measureRemoval(b *bench) error {
	b.section("worst acknowledgement while a segment of 256 MB is removed, %d records/s", removalRate)
	dir, done, err := b.tempDir()
	if err != nil {
		return err
	}
	defer done()
	o, err := openSpool(filepath.Join(dir, "spool"), nil, spool.Options{})
	if err != nil {
		return err
	}
	victim := filepath.Join(dir, "victim.db")
	ways := []struct {
		name   string
		remove func() error
	}{
		{"nothing removed", nil},
		{"segment removed", func() error { return segment.Remove(context.Background(), victim) }},
		{"file unlinked at once", func() error { return os.Remove(victim) }},
	}
	worst := make([][]float64, len(ways))
	for range b.rounds {
		for i, w := range ways {
			ms, err := removeOnce(o, victim, w.remove)
			if err != nil {
				return wrap(w.name, err)
			}
			worst[i] = append(worst[i], ms)
		}
	}
	for i, w := range ways {
		b.note("%-28s worst %.1f ms", w.name, median(worst[i]))
	}
	var more []float64
	for i := range worst[0] {
		more = append(more, worst[1][i]-worst[0][i])
	}
	b.add(atMost("removal adds to the worst acknowledgement", median(more), removalTarget, "ms",
		fmt.Sprintf("%.1f ms without, unlink %.1f ms", median(worst[0]), median(worst[2])), spread(worst[0])))
	return o.close()
}

func removeOnce(o *ours, victim string, remove func() error) (worst float64, err error) {
	f, err := zeroFilled(victim, removalSize)
	if err != nil {
		return 0, err
	}
	if err := f.Close(); err != nil {
		return 0, err
	}
	time.Sleep(settlingTime)
	m := new(meter)
	stop, ended := make(chan struct{}), make(chan int)
	go func() { ended <- pace(o, m, removalRate, time.Hour, stop) }()
	time.Sleep(settlingTime)
	m.on.Store(true)
	began := time.Now()
	if remove != nil {
		if err := remove(); err != nil {
			return 0, err
		}
	}
	const window = 2500 * time.Millisecond // the removal in steps takes 1.3 s, the discards of the disk a little more
	time.Sleep(window - min(window, time.Since(began)))
	m.on.Store(false)
	close(stop)
	n := <-ended
	m.await(n)
	_ = os.Remove(victim)
	return float64(m.hist.worst) / 1e6, m.err()
}
