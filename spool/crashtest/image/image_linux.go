package image

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Disk is a directory with images and one mount point.
type Disk struct {
	Mount string // where the file system is seen while it is mounted

	t      testing.TB
	dir    string
	fstype string
	size   int64
	image  string // the one that is mounted, or will be
	n      int
}

// New makes an empty file system of size bytes in an image. It is not mounted. New skips the test where that cannot be done.
func New(t testing.TB, fstype string, size int64) *Disk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a loop device needs root")
	}
	for _, tool := range []string{"mkfs." + fstype, "mount", "umount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	d := &Disk{t: t, dir: t.TempDir(), fstype: fstype, size: size}
	d.Mount = filepath.Join(d.dir, "mnt")
	if err := os.Mkdir(d.Mount, 0o755); err != nil {
		t.Fatal(err)
	}
	d.Format()
	if err := d.tryMount(); err != nil {
		t.Skipf("cannot mount a loop device here: %v", err)
	}
	t.Cleanup(d.Detach) // before TempDir's, and whatever happened
	d.Detach()
	return d
}

// Format makes a new image in place of the present one.
func (d *Disk) Format() {
	d.t.Helper()
	if d.image != "" {
		_ = os.Remove(d.image)
	}
	d.n++
	d.image = filepath.Join(d.dir, fmt.Sprintf("disk-%d.img", d.n))
	if err := os.WriteFile(d.image, nil, 0o600); err != nil {
		d.t.Fatal(err)
	}
	if err := os.Truncate(d.image, d.size); err != nil {
		d.t.Fatal(err)
	}
	quiet := map[string]string{"ext4": "-qF", "xfs": "-qf"}[d.fstype]
	if out, err := exec.Command("mkfs."+d.fstype, quiet, d.image).CombinedOutput(); err != nil {
		d.t.Fatalf("mkfs.%s: %v: %s", d.fstype, err, out)
	}
}

func (d *Disk) tryMount() error {
	out, err := exec.Command("mount", "-t", d.fstype, "-o", "loop", d.image, d.Mount).CombinedOutput()
	if err != nil {
		return fmt.Errorf("mount: %w: %s", err, out)
	}
	return nil
}

// Attach mounts the image.
func (d *Disk) Attach() {
	d.t.Helper()
	if err := d.tryMount(); err != nil {
		d.t.Fatal(err) // after a power cut this is a fault too: of the rig
	}
}

// Detach unmounts the disk's own mount point when something is mounted there. The loop device goes with it.
func (d *Disk) Detach() {
	for try := 0; d.device() != ""; try++ {
		err := syscall.Unmount(d.Mount, 0)
		if err == nil {
			continue
		}
		if try == 50 {
			d.t.Errorf("unmount %s: %v; it is detached", d.Mount, err)
			_ = syscall.Unmount(d.Mount, syscall.MNT_DETACH)
			return
		}
		time.Sleep(20 * time.Millisecond) // a child that was killed lets go of its files a moment later
	}
}

// device is the name of the loop device that is mounted, such as loop3; empty when none is.
func (d *Disk) device() string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		d.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if f[4] != d.Mount {
			continue
		}
		for i := 6; i+2 < len(f); i++ {
			if f[i] == "-" {
				return filepath.Base(f[i+2])
			}
		}
	}
	return ""
}

// Cut copies the image as it is while it is mounted, and goes on with the copy. The caller has stopped who writes to it.
func (d *Disk) Cut(release func()) {
	d.t.Helper()
	d.n++
	to := filepath.Join(d.dir, fmt.Sprintf("disk-%d.img", d.n))
	for try := 0; ; try++ {
		before := d.writes()
		if err := copySparse(d.image, to); err != nil {
			d.t.Fatal(err)
		}
		if before != "" && d.writes() == before {
			break
		}
		if try == 100 {
			d.t.Fatal("the loop device does not come to rest")
		}
		time.Sleep(20 * time.Millisecond) // the journal thread of the file system is at work
	}
	release()
	d.Detach()
	_ = os.Remove(d.image)
	d.image = to
}

// writes is what the loop device has written, empty while something is under way.
func (d *Disk) writes() string {
	b, err := os.ReadFile("/sys/block/" + d.device() + "/stat")
	if err != nil {
		d.t.Fatal(err)
	}
	f := strings.Fields(string(b))
	if len(f) < 9 || f[8] != "0" { // requests in flight
		return ""
	}
	return strings.Join(f[4:7], " ") // writes, merged, sectors
}

// copySparse copies the image through the page cache of the outer file system, where the loop device writes to.
func copySparse(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	defer dst.Close()
	fi, err := src.Stat()
	if err != nil {
		return err
	}
	if err := dst.Truncate(fi.Size()); err != nil {
		return err
	}
	for at := int64(0); at < fi.Size(); {
		data, err := unix.Seek(int(src.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		hole, err := unix.Seek(int(src.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(dst, data), io.NewSectionReader(src, data, hole-data)); err != nil {
			return err
		}
		at = hole
	}
	return nil
}
