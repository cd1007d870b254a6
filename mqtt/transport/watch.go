package transport

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// bundle is a group of files that is replaced as a whole: what stands in one has to fit what stands in the others.
type bundle struct {
	name  string
	files []string
	use   func(contents [][]byte) error // takes new contents, or none of them

	mu    sync.Mutex
	stats string            // how the files looked
	sum   [sha256.Size]byte // of what was read, faulty or not
	fault error             // why the files are not in use
	since time.Time         // when the first of its faults was seen
	now   func() time.Time
}

const alwaysRead = 1 << 20 // files up to here are read at every look: their time and size may be the same for other content

// look reads the files and takes them when they have changed. fault is why they are not in use, even when that is not new.
func (b *bundle) look() (changed bool, fault error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	stats, size := b.stat()
	if stats == b.stats && size > alwaysRead {
		return false, b.fault
	}
	contents, sum, err := b.read()
	b.stats = stats
	if sum == b.sum {
		return false, b.fault
	}
	b.sum = sum
	if err == nil {
		err = b.use(contents)
	}
	if err != nil && b.fault == nil {
		b.since = b.now()
	}
	b.fault = err
	return true, err
}

// problem is nil, or why the files are not in use, and since when.
func (b *bundle) problem() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fault == nil {
		return nil
	}
	return fmt.Errorf("%s not in use since %s, the old one stays in force: %w", b.name, b.since.UTC().Format(time.RFC3339), b.fault)
}

func (b *bundle) stat() (looks string, size int64) {
	var text strings.Builder
	for _, name := range b.files {
		info, err := os.Stat(name)
		if err != nil {
			text.WriteString(err.Error())
			continue
		}
		size += info.Size()
		fmt.Fprintln(&text, info.Size(), info.ModTime().UnixNano())
	}
	return text.String(), size
}

func (b *bundle) read() (contents [][]byte, sum [sha256.Size]byte, err error) {
	h := sha256.New()
	for _, name := range b.files {
		data, e := readFile(name)
		if e != nil {
			fmt.Fprintln(h, e)
			err = e
		}
		fmt.Fprintln(h, len(data))
		h.Write(data)
		contents = append(contents, data)
	}
	return contents, [sha256.Size]byte(h.Sum(nil)), err
}
