package crashtest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/vfs"
)

// What a child is told, and what it tells, one line each:
//
//	O                                            the spool is open
//	R stream partition offset producer n         found at start
//	S key n                                      state found at start
//	F stream partition offset                    log start, when it is not 0
//	P stream partition offset                    cursor position found at start
//	D                                            that was all
//	A stream partition offset producer n         acknowledged
//	C stream partition offset                    cursor durable
//	H text                                       health, in mode hold
//	X text                                       a fault
const (
	envDir  = "FOREBAY_CRASHTEST_DIR" // makes the process a child
	envMode = "FOREBAY_CRASHTEST_MODE"
	envKeys = "FOREBAY_CRASHTEST_KEYS" // directory with the files of keys 1 and 2
)

// What a child does after it has told what it found; one of them, and any of the words after it.
const (
	modeAppend = "append" // append until stopped
	modePaced  = "paced"  // append slowly: segments are written by age, cursors alone
	modeRead   = "read"   // close and exit
	modeHold   = "hold"   // the cursors stay where they are, until a line comes on standard input
	modeNoFree = "nofree" // no free space is kept for others: the disk says when it is full
	modeWindow = "window" // acknowledge before the sync as sync: interval does
	modeLie    = "lie"    // acknowledge before the sync
	modeKey1   = "key1"   // encrypt new files with key 1
	modeKey2   = "key2"   // with key 2
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(envDir); dir != "" {
		c := &child{dir: dir, mode: os.Getenv(envMode), out: os.Stdout, next: make([]int, producers)}
		if err := c.run(); err != nil {
			c.tell("X %v", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	os.Exit(m.Run())
}

type child struct {
	dir, mode string
	out       *os.File
	s         *spool.Spool
	next      []int // by producer

	mu   sync.Mutex
	acks bytes.Buffer
	high map[string][]spool.Offset // acknowledged ends by stream
}

func (c *child) is(mode string) bool { return strings.Contains(c.mode, mode) }

func (c *child) tell(format string, args ...any) {
	_, _ = fmt.Fprintf(c.out, format+"\n", args...)
}

func (c *child) run() error {
	lying := &lyingFS{FS: vfs.OS}
	var err error
	cfg := config(c.dir)
	if c.is(modeNoFree) {
		cfg.MinFree = 0
	}
	if c.is(modeWindow) {
		cfg.Sync, cfg.SyncInterval = spool.SyncInterval, unit.Duration(syncInterval)
	}
	cfg.Encryption = c.encryption()
	c.s, err = spool.Open(cfg, spool.Options{
		FS:     lying,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	c.tell("O")
	if err := c.dump(); err != nil {
		return err
	}
	cursors, err := c.openCursors()
	if err != nil {
		return err
	}
	c.tell("D")
	if c.is(modeRead) {
		return c.s.Close()
	}
	lying.lie.Store(c.is(modeLie))
	c.s.OnGroup(c.flush)
	for p := range producers {
		go c.produce(p, 1<<(3*p)) // 1, 8, 64, 512 outstanding
	}
	if c.is(modeHold) {
		go c.watch()
		_, _ = os.Stdin.Read(make([]byte, 1))
	}
	return c.commit(cursors)
}

// encryption lists both keys always: files of an earlier run need them.
func (c *child) encryption() (e spool.EncryptionConfig) {
	for id := 1; id <= 2; id++ {
		e.Keys = append(e.Keys, spool.KeyConfig{ID: id, File: filepath.Join(os.Getenv(envKeys), fmt.Sprint(id))})
	}
	switch {
	case c.is(modeKey1):
		e.Active = 1
	case c.is(modeKey2):
		e.Active = 2
	}
	return e
}

func (c *child) openCursors() (map[string]*spool.Cursor, error) {
	c.high = make(map[string][]spool.Offset)
	cursors := make(map[string]*spool.Cursor)
	for _, st := range c.s.Streams() {
		cur, err := c.s.OpenCursor(context.Background(), cursorName+st.Name, st.Name, spool.CursorOptions{From: spool.Beginning, Protect: true})
		if err != nil {
			return nil, err
		}
		for p := range st.Partitions {
			c.tell("P %s %d %d", st.Name, p, cur.Position(p))
		}
		c.high[st.Name] = make([]spool.Offset, st.Partitions)
		cursors[st.Name] = cur
	}
	return cursors, nil
}

// dump tells everything that the spool has.
func (c *child) dump() error {
	for _, st := range c.s.Streams() {
		for p := range st.Partitions {
			if err := c.dumpPartition(st.Name, p); err != nil {
				return err
			}
		}
	}
	var b bytes.Buffer
	err := c.s.Load(stateSpace, func(key string, value []byte) error {
		fmt.Fprintf(&b, "S %s %s\n", key, value)
		return nil
	})
	_, _ = c.out.Write(b.Bytes())
	return err
}

func (c *child) dumpPartition(stream string, p int) error {
	start, end := c.s.Bounds(stream, p)
	if start != 0 {
		c.tell("F %s %d %d", stream, p, start)
	}
	r, err := c.s.NewReader(stream, p, start)
	if err != nil {
		return err
	}
	defer r.Close()
	want := start
	var out bytes.Buffer
	for want < end {
		b, ok, err := r.TryNext()
		switch {
		case err != nil:
			return err
		case !ok:
			return fmt.Errorf("%s/%d: reader is at the tail at %d, the log ends at %d", stream, p, want, end)
		case b.Gap != nil && b.Gap.Reason == spool.GapRetention: // what is delivered goes while we read, on a full disk
			want = b.Gap.To
			out.Reset()
			c.tell("F %s %d %d", stream, p, want)
			continue
		case b.Gap != nil:
			return fmt.Errorf("%s/%d: gap %v", stream, p, *b.Gap)
		}
		for i := range b.Records {
			rec := &b.Records[i]
			k, err := identify(rec)
			if err != nil {
				return fmt.Errorf("%s/%d at %d: %w", stream, p, rec.Offset, err)
			}
			if rec.Offset != want || int(rec.Partition) != p {
				return fmt.Errorf("%s/%d: offset %d of partition %d, want offset %d", stream, p, rec.Offset, rec.Partition, want)
			}
			want++
			c.next[k.producer] = max(c.next[k.producer], k.n+1)
			fmt.Fprintf(&out, "R %s %d %d %d %d\n", stream, p, rec.Offset, k.producer, k.n)
		}
	}
	_, _ = c.out.Write(out.Bytes())
	return nil
}

// ack tells one acknowledgement with those of its group, as the MQTT front does.
type ack struct {
	c      *child
	k      id
	stream string
	slots  chan struct{}
}

func (a ack) Durable(rec *spool.Record, err error) {
	if err != nil {
		a.c.tell("X acknowledgement of %v: %v", a.k, err)
		return
	}
	fmt.Fprintf(&a.c.acks, "A %s %d %d %d %d\n", a.stream, rec.Partition, rec.Offset, a.k.producer, a.k.n)
	a.c.mu.Lock()
	a.c.high[a.stream][rec.Partition] = rec.Offset + 1
	a.c.mu.Unlock()
	<-a.slots
}

func (c *child) flush() {
	_, _ = c.out.Write(c.acks.Bytes())
	c.acks.Reset()
}

func (c *child) produce(p, outstanding int) {
	slots := make(chan struct{}, outstanding)
	for {
		slots <- struct{}{}
		k := id{p, c.next[p]}
		c.next[p]++
		r := record(k, c.s.Now().UnixNano())
		err := c.s.Append(context.Background(), spool.Entry{
			Record: r, Changes: change(k), Done: ack{c, k, c.s.StreamFor(r.Topic), slots},
		})
		if err != nil {
			c.tell("X append of %v: %v", k, err)
			return
		}
		if c.is(modePaced) {
			time.Sleep(time.Millisecond)
		}
	}
}

// commit moves the cursors to what is acknowledged, and tells when that is durable.
func (c *child) commit(cursors map[string]*spool.Cursor) error {
	for {
		for stream, cur := range cursors {
			c.mu.Lock()
			high := slices.Clone(c.high[stream])
			c.mu.Unlock()
			for p, o := range high {
				cur.Commit(p, o)
			}
			if err := cur.Flush(context.Background()); err != nil {
				return err
			}
			var b bytes.Buffer
			for p, o := range high {
				fmt.Fprintf(&b, "C %s %d %d\n", stream, p, o)
			}
			_, _ = c.out.Write(b.Bytes())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// watch tells how the spool is.
func (c *child) watch() {
	for {
		err := c.s.Health()
		if errors.Is(err, spool.ErrFailed) {
			c.tell("X health: %v", err)
		}
		c.tell("H %v", err)
		time.Sleep(100 * time.Millisecond)
	}
}

// lyingFS acknowledges syncs that it has not done, once lie is set: the fault that the rig has to see.
type lyingFS struct {
	vfs.FS
	lie atomic.Bool
}

func (l *lyingFS) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	return l.wrap(l.FS.OpenFile(name, flag, perm))
}

func (l *lyingFS) Create(name string) (vfs.File, error) { return l.wrap(l.FS.Create(name)) }

func (l *lyingFS) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return lyingFile{f, l}, nil
}

type lyingFile struct {
	vfs.File
	l *lyingFS
}

func (f lyingFile) Datasync() error {
	if f.l.lie.Load() {
		return nil
	}
	return f.File.Datasync()
}
