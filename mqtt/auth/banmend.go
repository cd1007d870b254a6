package auth

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Mended is what MendBans has done.
type Mended struct {
	File   string   `json:"file"`
	Kept   int      `json:"kept"`            // bans that are in force
	Aside  string   `json:"aside,omitempty"` // where the file is as it was; empty: nothing was wrong with it
	Faults []string `json:"faults"`          // of the lines that are left out
}

// MendBans makes a damaged ban list one that can be read: the file as it was is set aside, and what can be read of it stays. A gateway does
// not do so by itself: it would let in whom a line that nobody can read keeps out, and nobody would know.
func MendBans(name string, now time.Time) (m Mended, err error) {
	m = Mended{File: name, Faults: []string{}}
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return m, err
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil { // as a gateway that adds a ban
		return m, fmt.Errorf("lock %s: %w", dir.Name(), err)
	}
	data, err := readFile(name)
	if err != nil {
		return m, err
	}
	var good []string
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		bans, err := ParseBans(name, []byte(line))
		if err == nil {
			m.Kept += len(bans)
			good = append(good, strings.TrimRight(line, "\r\n"))
			continue
		}
		m.Faults = append(m.Faults, strings.Replace(err.Error(), name+":1:", fmt.Sprintf("%s:%d:", name, number), 1))
	}
	if len(m.Faults) == 0 {
		return m, nil
	}
	m.Aside = name + ".damaged-" + now.UTC().Format("20060102T150405.000Z")
	if err := replaceFile(m.Aside, data, dir); err != nil {
		return m, err
	}
	return m, replaceFile(name, []byte(strings.Join(append(good, ""), "\n")), dir)
}
