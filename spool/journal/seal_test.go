package journal

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/forebay-gateway/forebay/spool/vfs"
	"github.com/forebay-gateway/forebay/spool/vfs/vfstest"
)

// testSealer is what tryOpen gives to a journal.
var testSealer Sealer

// aesSealer encrypts for real, and finds a number that is used twice.
type aesSealer struct {
	t   testing.TB
	off bool // new files are not encrypted

	mu   sync.Mutex
	uses uint64
	used map[[2]uint64]bool // by use and number
}

func newSealer(t testing.TB) *aesSealer { return &aesSealer{t: t, used: map[[2]uint64]bool{}} }

var errTestKey = errors.New("no such key")

func (s *aesSealer) Overhead() int {
	if s.off {
		return 0
	}
	return 16
}

func (s *aesSealer) Begin() (Cipher, []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uses++
	return s.cipher(s.uses, true), binary.LittleEndian.AppendUint64([]byte("test"), s.uses)
}

func (s *aesSealer) Resume(params []byte) (Cipher, error) {
	if len(params) != 12 || string(params[:4]) != "test" {
		return nil, errTestKey
	}
	return s.cipher(binary.LittleEndian.Uint64(params[4:]), false), nil
}

func (s *aesSealer) cipher(use uint64, fresh bool) Cipher {
	block, err := aes.NewCipher(binary.LittleEndian.AppendUint64(make([]byte, 24), use))
	if err != nil {
		panic(err)
	}
	g, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return aesCipher{s, use, fresh, g}
}

type aesCipher struct {
	s     *aesSealer
	use   uint64
	fresh bool
	g     cipher.AEAD
}

func nonceOf(number uint64) []byte { return binary.BigEndian.AppendUint64(make([]byte, 4), number) }

func (c aesCipher) SealAt(dst []byte, number uint64, plain, aad []byte) []byte {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if k := [2]uint64{c.use, number}; c.s.used[k] || !c.fresh {
		c.s.t.Errorf("use %d: number %d again, or in a file that was begun by an earlier run", c.use, number)
	} else {
		c.s.used[k] = true
	}
	return c.g.Seal(dst, nonceOf(number), plain, aad)
}

func (c aesCipher) OpenAt(dst []byte, number uint64, sealed, aad []byte) ([]byte, error) {
	return c.g.Open(dst, nonceOf(number), sealed, aad)
}

// withSealer runs what opens journals with s.
func withSealer(t *testing.T, s Sealer) {
	t.Helper()
	testSealer = s
	t.Cleanup(func() { testSealer = nil })
}

// TestEncryptedJournalPassesTheCrashTests runs them with encryption: no number may come twice in one use of a file, whatever
// fails and whenever the power is cut.
func TestEncryptedJournalPassesTheCrashTests(t *testing.T) {
	withSealer(t, newSealer(t))
	t.Run("power cut at every call", TestPowerCutAtEveryCall)
	t.Run("each call failing in turn", TestEachCallFailingInTurn)
	t.Run("random life", TestRandomLifeWithFaultsAndPowerCuts)
	t.Run("random operations", TestRandomOperationsAgainstAModel)
	t.Run("failed sync", TestFailedSyncIsNeverRepeatedOnThatFile)
}

func allBytes(t testing.TB, fsys vfs.FS) (all []byte) {
	t.Helper()
	entries, err := fsys.ReadDir(testDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		f, err := fsys.OpenFile(testDir+"/"+e.Name(), os.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		n, _ := f.Size()
		b := make([]byte, n)
		if _, err := f.ReadAt(b, 0); err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
		f.Close()
	}
	return all
}

func TestEncryptedJournalHidesPayloads(t *testing.T) {
	withSealer(t, newSealer(t))
	d := vfstest.NewDisk()
	faults := vfstest.NewFaults(d)
	j := openOn(t, faults, small())
	mustAppend(t, j, "SECRET one", "SECRET two")
	j.quiesce()
	faults.Add(vfstest.Fault{Kind: vfstest.Datasync, N: 1, Err: syscall.EIO})
	mustAppend(t, j, "SECRET in a fresh file")
	j.Close()
	j = openOn(t, d, small()) // writes the tail again
	got, lost := contents(t, j, 0)
	want(t, got, 1, "SECRET one", "SECRET two", "SECRET in a fresh file")
	if lost != nil {
		t.Errorf("lost %v", lost)
	}
	if bytes.Contains(allBytes(t, d), []byte("SECRET")) {
		t.Error("a payload is readable on the disk")
	}
	if n := j.MaxPayload(); n != 64<<10-headerSize-frameHeader-16 {
		t.Errorf("max payload %d", n)
	}
	if _, _, err := j.Append(make([]byte, j.MaxPayload())); err != nil {
		t.Errorf("largest payload: %v", err)
	}
	if _, _, err := j.Append(make([]byte, j.MaxPayload()+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("larger than the largest: %v", err)
	}
}

func TestEncryptionIsTurnedOnAndOff(t *testing.T) {
	d := vfstest.NewDisk()
	s := newSealer(t)
	var all []string
	for round, mode := range []Sealer{nil, s, &aesSealer{t: t, off: true, used: s.used}, s, s} {
		withSealer(t, mode)
		cfg := small()
		cfg.Files = 8 // nothing is released
		j := openOn(t, d, cfg)
		got, lost := contents(t, j, 0)
		want(t, got, 1, all...)
		if lost != nil {
			t.Errorf("round %d: lost %v", round, lost)
		}
		p := fmt.Sprintf("payload of round %d", round)
		all = append(all, p)
		mustAppend(t, j, p)
		j.Close()
	}
}

func TestMissingKeyEndsReplayAndChangesNothing(t *testing.T) {
	withSealer(t, newSealer(t))
	d := vfstest.NewDisk()
	j := openOn(t, d, small())
	mustAppend(t, j, "a")
	mustAppend(t, j, "b")
	j.quiesce()
	j.Close()
	f := func(s Sealer, wantErr error) {
		t.Helper()
		withSealer(t, s)
		j := openOn(t, d, small())
		err := j.Replay(0, func(LSN, []byte) error { t.Error("a frame was shown"); return nil })
		if loss, isLoss := errors.AsType[*LossError](err); isLoss || !errors.Is(err, wantErr) || !strings.Contains(err.Error(), suffix) {
			t.Errorf("got %v %v, want %v", err, loss, wantErr)
		}
		if err := j.Replay(2, func(LSN, []byte) error { return nil }); err != nil {
			t.Errorf("nothing is needed of the file, all the same: %v", err)
		}
		j.Close()
	}
	f(nil, ErrSealed)
	f(keyless{}, errTestKey)
	if _, err := Frames(d, testDir, nil, func(Frame) error { return nil }); !errors.Is(err, ErrSealed) {
		t.Errorf("frames: %v", err)
	}
	if r, err := Scan(d, testDir); err != nil || r.Last != 2 || len(r.Lost) > 0 {
		t.Errorf("a scan needs no key: %+v %v", r, err)
	}
	withSealer(t, newSealer(t))
	j = openOn(t, d, small())
	got, lost := contents(t, j, 0)
	want(t, got, 1, "a", "b")
	if lost != nil {
		t.Errorf("lost %v", lost)
	}
}

// keyless has another key.
type keyless struct{}

func (keyless) Overhead() int                 { return 0 }
func (keyless) Begin() (Cipher, []byte)       { return nil, nil }
func (keyless) Resume([]byte) (Cipher, error) { return nil, errTestKey }

// Whoever can write to a file can make its checksums right, but not what the key protects.
func TestChangedFrameIsLostNotShown(t *testing.T) {
	withSealer(t, newSealer(t))
	d := vfstest.NewDisk()
	j := openOn(t, d, small())
	mustAppend(t, j, "a")
	mustAppend(t, j, "b")
	mustAppend(t, j, "c")
	name, epoch := j.active.name, j.active.epoch
	j.quiesce()
	j.Close()
	f, err := d.OpenFile(testDir+"/"+name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, blockSize)
	if _, err := f.ReadAt(frame, headerSize+blockSize); err != nil { // the second
		t.Fatal(err)
	}
	f.Close()
	frame[frameHeader] ^= 1
	sealFrames(frame, seedOf(epoch))
	poke(t, d, name, headerSize+blockSize, frame)
	j = openOn(t, d, small())
	got, lost := contents(t, j, 0)
	if len(got) != 2 || got[1] != "a" || got[3] != "c" || len(lost) != 1 || lost[0] != (Range{2, 2}) {
		t.Errorf("got %v, lost %v", got, lost)
	}
}
