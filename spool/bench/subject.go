package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/forebay-gateway/forebay/spool"
)

// subject is a log under test.
type subject interface {
	// append queues r. done is told once it is durable, in order, on one goroutine.
	append(r *spool.Record, done spool.Completion) error
	// settle waits until what goes on behind the acknowledgements has ended.
	settle()
	close() error
}

// kind is a subject by name.
type kind struct {
	name string
	open func(dir string) (subject, error)
}

const (
	plainName  = "plain growing log"
	zeroedName = "pre-zeroed log"
	bboltName  = "bbolt, key per message"
	oursName   = "forebay spool"
	natsName   = "NATS JetStream, sync always"
	walName    = "tidwall/wal"
)

var kinds = []kind{
	{plainName, openPlain},
	{zeroedName, openZeroed},
	{bboltName, openBbolt},
	{oursName, openOurs},
	{natsName, openNATS},
	{walName, openWAL},
}

// grouped puts the natural group commit in front of a store: whatever waits when the last sync has returned.
type grouped struct {
	store store
	mu    sync.Mutex
	wait  []entry
	work  chan struct{}
	done  chan struct{}
}

// store makes records durable.
type store interface {
	write(group []entry) error
	close() error
}

type entry struct {
	rec  *spool.Record
	done spool.Completion
}

func group(s store) *grouped {
	g := &grouped{store: s, work: make(chan struct{}, 1), done: make(chan struct{})}
	go g.run()
	return g
}

func (g *grouped) append(r *spool.Record, done spool.Completion) error {
	g.mu.Lock()
	g.wait = append(g.wait, entry{r, done})
	first := len(g.wait) == 1
	g.mu.Unlock()
	if first {
		select {
		case g.work <- struct{}{}:
		default:
		}
	}
	return nil
}

func (g *grouped) run() {
	defer close(g.done)
	var spare []entry
	for range g.work {
		g.mu.Lock()
		taken := g.wait
		g.wait = spare[:0]
		g.mu.Unlock()
		err := g.store.write(taken)
		for i := range taken {
			taken[i].done.Durable(taken[i].rec, err)
		}
		clear(taken)
		spare = taken
	}
}

func (g *grouped) settle() {}

func (g *grouped) close() error {
	close(g.work)
	<-g.done
	return g.store.close()
}

// plain is the reference: length, CRC32C and the records of a group in one write, one fdatasync. Its file grows, or it is
// zero-filled once and written again and again.
type plain struct {
	f    *os.File
	at   int64
	wrap int64 // 0: the file grows
	buf  []byte
}

const zeroedSize = 192 << 20 // as much as the three journal files of the spool

func openPlain(dir string) (subject, error) {
	f, err := os.Create(filepath.Join(dir, "plain.log"))
	if err != nil {
		return nil, err
	}
	return group(&plain{f: f}), nil
}

func openZeroed(dir string) (subject, error) {
	f, err := zeroFilled(filepath.Join(dir, "zeroed.log"), zeroedSize)
	if err != nil {
		return nil, err
	}
	return group(&plain{f: f, wrap: zeroedSize}), nil
}

// zeroFilled makes a file of written zeroes: its later writes change no metadata.
func zeroFilled(name string, size int64) (*os.File, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	zero := make([]byte, 1<<20)
	for at := int64(0); at < size; at += int64(len(zero)) {
		if _, err := f.WriteAt(zero, at); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return f, f.Sync()
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (p *plain) write(group []entry) error {
	b := append(p.buf[:0], 0, 0, 0, 0, 0, 0, 0, 0)
	for _, e := range group {
		b = appendPlain(b, e.rec)
	}
	p.buf = b
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	if p.wrap > 0 && p.at+int64(len(b)) > p.wrap {
		p.at = 0
	}
	if _, err := p.f.WriteAt(b, p.at); err != nil {
		return err
	}
	p.at += int64(len(b))
	return unix.Fdatasync(int(p.f.Fd()))
}

func appendPlain(b []byte, r *spool.Record) []byte {
	b = binary.AppendUvarint(b, uint64(len(r.Topic)))
	b = append(b, r.Topic...)
	b = binary.AppendUvarint(b, uint64(len(r.ClientID)))
	b = append(b, r.ClientID...)
	b = binary.AppendUvarint(b, uint64(len(r.Payload)))
	return append(b, r.Payload...)
}

func (p *plain) close() error { return p.f.Close() }

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
