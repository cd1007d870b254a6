package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/vfs"
	"github.com/forebay-gateway/forebay/spool/vfs/vfstest"
)

const (
	ackTarget = 1.35
	block     = 4096
)

// measureAck compares the acknowledgement of one producer with the least that a disk can do: 4 KiB into a file of written
// zeroes, and fdatasync.
func measureAck(b *bench) error {
	b.section("acknowledgement of a single producer")
	dir, done, err := b.tempDir()
	if err != nil {
		return err
	}
	defer done()
	raw, err := zeroFilled(filepath.Join(dir, "raw"), 64<<20)
	if err != nil {
		return err
	}
	defer raw.Close()
	o, err := openSpool(filepath.Join(dir, "spool"), nil, spool.Options{})
	if err != nil {
		return err
	}
	var rawP50, ourP50 []float64
	at := int64(0)
	for range b.rounds {
		p50, err := rawSyncs(raw, &at, b.time)
		if err != nil {
			return err
		}
		m, err := (load{producers: 1, outstanding: 1}).run(o, b.time)
		if err != nil {
			return err
		}
		rawP50, ourP50 = append(rawP50, p50), append(ourP50, m.p50)
	}
	b.add(atMost("ack p50 / raw 4 KiB write + fdatasync", median(ratios(ourP50, rawP50)), ackTarget, "x",
		fmt.Sprintf("%.3f ms / %.3f ms", median(ourP50), median(rawP50)), spread(rawP50)))
	return o.close()
}

func rawSyncs(f *os.File, at *int64, d time.Duration) (p50 float64, err error) {
	var h histogram
	buf := make([]byte, block)
	for began := time.Now(); time.Since(began) < d; {
		start := time.Now()
		if _, err := f.WriteAt(buf, *at); err != nil {
			return 0, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return 0, err
		}
		h.add(time.Since(start))
		*at = (*at + block) % (64 << 20)
	}
	return h.quantile(0.5), nil
}

// measureSyncs counts the syncs of the acknowledgement path. So little is appended that no journal file is switched: what is
// done for the next file is done behind the acknowledgements.
func measureSyncs(b *bench) error {
	b.section("syncs")
	for _, l := range []load{{producers: 1, outstanding: 1}, {producers: 100, outstanding: 1}, {producers: 1, outstanding: 64}} {
		if err := countSyncs(b, l); err != nil {
			return err
		}
	}
	return nil
}

func countSyncs(b *bench, l load) error {
	dir, done, err := b.tempDir()
	if err != nil {
		return err
	}
	defer done()
	count := vfstest.NewCounter(vfs.OS)
	o, err := openSpool(dir, nil, spool.Options{FS: count})
	if err != nil {
		return err
	}
	syncs, groups := count.Count("").Syncs, o.s.Stats().Groups
	if _, err := l.run(o, 200*time.Millisecond); err != nil {
		return err
	}
	time.Sleep(10 * time.Millisecond) // the last group is counted after its acknowledgements
	syncs, groups = count.Count("").Syncs-syncs, o.s.Stats().Groups-groups
	f := atMost(fmt.Sprintf("fdatasyncs / group, %d producers, %d outstanding", l.producers, l.outstanding),
		float64(syncs)/float64(groups), 1, "", fmt.Sprintf("%d / %d", syncs, groups), false)
	*f.OK = syncs == int(groups)
	b.add(f)
	return o.close()
}
