package auth

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const maxBansInMemory = 10_000 // automatic ones, and all without a file; the one that ends first makes room

// bans are those of the file and those in memory: automatic ones, and without a file those made while running.
type bans struct {
	file *source[*banTable] // nil without a file
	now  func() time.Time

	mu    sync.RWMutex
	added *banTable // in memory
}

func newBans(now func() time.Time) *bans { return &bans{now: now, added: newBanTable(nil)} }

// openFile reads the file of bans; one of the gateway's own is made when it is missing.
func (b *bans) openFile(name string, own bool) (err error) {
	if own {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	b.file, err = newSource(name, parseBanTable)
	return err
}

func (b *bans) tables() (file, added *banTable) {
	if b.file != nil {
		file = b.file.load()
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	return file, b.added
}

func (b *bans) list() []Ban {
	var all []Ban
	file, added := b.tables()
	if file != nil {
		all = append(all, file.list...)
	}
	all = append(all, added.list...)
	now := b.now()
	return slices.DeleteFunc(all, func(x Ban) bool { return x.over(now) })
}

// banned reports whether some ban matches. user is the claimed one before authentication, the real one after.
func (b *bans) banned(client, user string, remote netip.Addr) bool {
	return b.any(client, user, remote, func(Ban) bool { return true })
}

// ended is banned for who is in.
func (b *bans) ended(client, user string, remote netip.Addr) bool {
	return b.any(client, user, remote, func(x Ban) bool { return !x.Automatic })
}

// screened is banned for who has said nothing yet: only an address can be known.
func (b *bans) screened(remote netip.Addr) bool {
	return b.any("", "", remote, func(x Ban) bool { return x.Client == "" && x.User == "" })
}

func (b *bans) any(client, user string, remote netip.Addr, ok func(Ban) bool) bool {
	now := b.now()
	file, added := b.tables()
	return file.any(now, client, user, remote, ok) || added.any(now, client, user, remote, ok)
}

// add puts a ban into the file, so that it outlives a restart; an automatic one, or any without a file, into memory.
func (b *bans) add(x Ban) error {
	if err := x.Validate(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if x.Automatic || b.file == nil {
		now := b.now()
		list := slices.DeleteFunc(slices.Clone(b.added.list), func(o Ban) bool { return o.over(now) || o.same(x) && o.Automatic == x.Automatic })
		if len(list) >= maxBansInMemory {
			i := slices.IndexFunc(list, func(o Ban) bool { return !o.Until.IsZero() })
			for j, o := range list {
				if i >= 0 && !o.Until.IsZero() && o.Until.Before(list[i].Until) {
					i = j
				}
			}
			if i < 0 {
				return fmt.Errorf("there are %d bans in memory: set auth.ban.file", len(list))
			}
			list = slices.Delete(list, i, i+1)
		}
		b.added = newBanTable(append(list, x))
		return nil
	}
	return b.rewriteLocked(func(lines []string) []string { return append(b.inForce(lines), x.String()) })
}

// inForce leaves out the bans whose time is over, so that the file does not grow without end.
func (b *bans) inForce(lines []string) []string {
	now := b.now()
	return slices.DeleteFunc(lines, func(line string) bool {
		one, err := ParseBans("", []byte(line))
		return err == nil && len(one) == 1 && one[0].over(now)
	})
}

// same reports whether two bans have the same conditions.
func (b Ban) same(x Ban) bool {
	return b.Client == x.Client && b.User == x.User && b.Address == x.Address
}

// remove takes all bans away that have the conditions of x, whatever their end and reason; it returns how many.
func (b *bans) remove(x Ban) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(b.added.list), x.same)
	if n = len(b.added.list) - len(list); n > 0 {
		b.added = newBanTable(list)
	}
	if b.file == nil || !slices.ContainsFunc(b.file.load().list, x.same) {
		return n, nil
	}
	return n, b.rewriteLocked(func(lines []string) []string {
		return slices.DeleteFunc(lines, func(line string) bool {
			one, err := ParseBans("", []byte(line))
			gone := err == nil && len(one) == 1 && x.same(one[0])
			n += b2i(gone)
			return gone
		})
	})
}

func (b *bans) rewriteLocked(change func(lines []string) []string) error {
	name := b.file.name
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", dir.Name(), err)
	}
	data, err := readFile(name)
	if err != nil {
		return err
	}
	if _, err := ParseBans(name, data); err != nil {
		return err
	}
	var lines []string
	if text := strings.TrimSuffix(string(data), "\n"); text != "" {
		lines = strings.Split(text, "\n")
	}
	data = []byte(strings.Join(append(change(lines), ""), "\n"))
	if _, err := ParseBans(name, data); err != nil { // a file that cannot be read again would keep the gateway from starting
		return err
	}
	if err := replaceFile(name, data, dir); err != nil {
		return err
	}
	return b.file.reload()
}
