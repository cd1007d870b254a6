package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is what this process has used up to now.
func cpuTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// deviceBytes is what the whole machine has written to the disk of dir; 0 where it is not in /proc/diskstats.
//
// What a process has written (write_bytes of /proc/self/io) is no substitute: it counts the whole folio, up to 2 MiB, for
// each block that is made dirty in it.
func deviceBytes(dir string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, err
	}
	stats, err := os.ReadFile("/proc/diskstats")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(stats)) {
		var major, minor uint32
		var name string
		var v [7]int64
		if _, err := fmt.Sscan(line, &major, &minor, &name, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6]); err != nil {
			continue
		}
		if major == unix.Major(st.Dev) && minor == unix.Minor(st.Dev) {
			return v[6] * 512, nil
		}
	}
	return 0, nil
}

// mounted is where ownDisk has mounted something, for the end by a signal.
var mounted atomic.Pointer[string]

// ownDisk mounts an ext4 file system in an image below dir: its device counts what we write and nobody else. Root only.
func ownDisk(dir string) (mnt string, unmount func() error, err error) {
	if os.Geteuid() != 0 {
		return "", nil, errors.New("mounting a loop device needs root")
	}
	image := filepath.Join(dir, "disk.img")
	mnt = filepath.Join(dir, "disk")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return "", nil, err
	}
	if err := errors.Join(os.Truncate(image, 4<<30), os.Mkdir(mnt, 0o755)); err != nil {
		return "", nil, err
	}
	// Without lazy initialisation: it would be counted.
	for _, args := range [][]string{
		{"mkfs.ext4", "-qF", "-E", "lazy_itable_init=0,lazy_journal_init=0", image},
		{"mount", "-o", "loop", image, mnt},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return "", nil, fmt.Errorf("%s: %w: %s", args[0], err, out)
		}
	}
	mounted.Store(&mnt)
	return mnt, func() error {
		mounted.Store(nil)
		return errors.Join(syscall.Unmount(mnt, 0), os.Remove(image))
	}, nil
}

// chill drops the pages of all files below dir from the page cache. Pages that somebody has mapped stay.
func chill(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Sync(); err != nil { // a dirty page is not dropped
			return err
		}
		return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
}
