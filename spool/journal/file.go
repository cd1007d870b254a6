package journal

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/forebay-gateway/forebay/spool/vfs"
)

const (
	suffix    = ".journal"
	tmpSuffix = ".tmp" // being filled with zeros; removed at the next start
	badSuffix = ".damaged"

	zeroStep = 1 << 20 // one write of the zero-fill
	syncStep = 4 << 20 // zeros between two syncs: more would hold up the syncs of the acknowledgement path
)

// file is one open file of the journal.
type file struct {
	vfs.File
	name string // base name
	slot uint64 // number in the name; means nothing
	header

	cipher Cipher // nil: not encrypted, or not asked for yet

	off  int64 // where the next frame goes; 0 when not even the header of this use is written
	last LSN   // of the last frame that counts; first-1 when there is none

	// bad: a write or a sync failed, or the size is not the configured one. Never written again.
	bad bool
	// damaged: durable frames are missing. Set aside and not recycled.
	damaged bool
}

func slotName(slot uint64) string { return fmt.Sprintf("%08d%s", slot, suffix) }

func parseSlot(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) < 8 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil
}

// writeAll is WriteAt with a short write as an error.
func writeAll(f vfs.File, b []byte, off int64) error {
	n, err := f.WriteAt(b, off)
	if err == nil && n != len(b) {
		err = io.ErrShortWrite
	}
	return err
}

// createFile makes a free file under its final name: filled with zeros, synced, name synced. On error nothing is left.
// stopped is asked now and then; when it says true the work is given up with ErrClosed.
func createFile(fsys vfs.FS, dir string, slot uint64, h header, stopped func() bool) (_ *file, err error) {
	name := slotName(slot)
	path := filepath.Join(dir, name)
	// Asking first keeps a full disk from being filled to the last block, for nothing, at each attempt.
	if free, err := fsys.DiskFree(dir); err == nil && free < h.size {
		return nil, fmt.Errorf("create %s: %w: %d of %d bytes free", name, syscall.ENOSPC, free, h.size)
	}
	f, err := fsys.Create(path + tmpSuffix)
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	renamed := false
	defer func() {
		if err == nil {
			return
		}
		f.Close()
		if renamed {
			_ = fsys.Remove(path)
		} else {
			_ = fsys.Remove(path + tmpSuffix)
		}
	}()
	if err := zeroFill(f, h.size, stopped); err != nil {
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	if err := writeFree(f, h); err != nil {
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	if err := fsys.Rename(path+tmpSuffix, path); err != nil {
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	renamed = true
	if err := fsys.SyncDir(dir); err != nil {
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	return &file{File: f, name: name, slot: slot, header: h}, nil
}

func zeroFill(f vfs.File, size int64, stopped func() bool) error {
	buf := make([]byte, min(size, zeroStep))
	for off := int64(0); off < size; {
		if stopped() {
			return ErrClosed
		}
		n := min(size-off, int64(len(buf)))
		if err := writeAll(f, buf[:n], off); err != nil {
			return err
		}
		off += n
		if off%syncStep == 0 && off < size {
			if err := f.Datasync(); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeFree marks the file as holding nothing, and makes that durable, before its first frame may be overwritten: else a
// crash in the middle of the next use would show the old header over missing frames, which is what damage looks like.
func writeFree(f vfs.File, h header) error {
	h.state, h.begun, h.seal = stateFree, 0, ""
	b := make([]byte, headerSize)
	h.put(b)
	if err := writeAll(f, b, 0); err != nil {
		return err
	}
	return f.Datasync()
}

// noSpace tells whether err goes away when somebody makes room.
func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
