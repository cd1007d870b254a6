package crashtest

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

// rig is a directory with images and one mount point.
type rig struct {
	t      *testing.T
	dir    string
	fstype string
	size   int64
	mnt    string
	image  string // the one that is mounted, or will be
	n      int
}

// newRig makes an empty file system of size bytes in an image. It skips the test where that cannot be done.
func newRig(t *testing.T, fstype string, size int64) *rig {
	t.Helper()
	if testing.Short() {
		t.Skip("mounts file systems and takes seconds a round: not in the short form")
	}
	if os.Geteuid() != 0 {
		t.Skip("mounting a loop device needs root")
	}
	for _, tool := range []string{"mkfs." + fstype, "mount", "umount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	r := &rig{t: t, dir: t.TempDir(), fstype: fstype, size: size}
	r.mnt = filepath.Join(r.dir, "mnt")
	if err := os.Mkdir(r.mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	r.format()
	if err := r.tryMount(); err != nil {
		t.Skipf("cannot mount a loop device here: %v", err)
	}
	t.Cleanup(r.unmount) // before TempDir's, and whatever happened
	r.unmount()
	return r
}

// format makes a new image.
func (r *rig) format() {
	r.t.Helper()
	r.n++
	r.image = filepath.Join(r.dir, fmt.Sprintf("disk-%d.img", r.n))
	if err := os.WriteFile(r.image, nil, 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Truncate(r.image, r.size); err != nil {
		r.t.Fatal(err)
	}
	quiet := map[string]string{"ext4": "-qF", "xfs": "-qf"}[r.fstype]
	if out, err := exec.Command("mkfs."+r.fstype, quiet, r.image).CombinedOutput(); err != nil {
		r.t.Fatalf("mkfs.%s: %v: %s", r.fstype, err, out)
	}
}

func (r *rig) tryMount() error {
	out, err := exec.Command("mount", "-t", r.fstype, "-o", "loop", r.image, r.mnt).CombinedOutput()
	if err != nil {
		return fmt.Errorf("mount: %w: %s", err, out)
	}
	return nil
}

func (r *rig) mount() {
	r.t.Helper()
	if err := r.tryMount(); err != nil {
		r.t.Fatal(err) // after a power cut this is a fault too: of the rig
	}
}

// unmount unmounts the rig's own mount point when something is mounted there. The loop device goes with it.
func (r *rig) unmount() {
	for try := 0; r.device() != ""; try++ {
		err := syscall.Unmount(r.mnt, 0)
		if err == nil {
			continue
		}
		if try == 50 {
			r.t.Errorf("unmount %s: %v; it is detached", r.mnt, err)
			_ = syscall.Unmount(r.mnt, syscall.MNT_DETACH)
			return
		}
		time.Sleep(20 * time.Millisecond) // a child that was killed lets go of its files a moment later
	}
}

// device is the name of the loop device that is mounted, such as loop3; empty when none is.
func (r *rig) device() string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		r.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if f[4] != r.mnt {
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

// cut copies the image as it is while it is mounted, and goes on with the copy. The caller has stopped who writes to it.
func (r *rig) cut(release func()) {
	r.t.Helper()
	r.n++
	to := filepath.Join(r.dir, fmt.Sprintf("disk-%d.img", r.n))
	for try := 0; ; try++ {
		before := r.writes()
		if err := copySparse(r.image, to); err != nil {
			r.t.Fatal(err)
		}
		if before != "" && r.writes() == before {
			break
		}
		if try == 100 {
			r.t.Fatal("the loop device does not come to rest")
		}
		time.Sleep(20 * time.Millisecond) // the journal thread of the file system is at work
	}
	release()
	r.unmount()
	_ = os.Remove(r.image)
	r.image = to
}

// writes is what the loop device has written, empty while something is under way.
func (r *rig) writes() string {
	b, err := os.ReadFile("/sys/block/" + r.device() + "/stat")
	if err != nil {
		r.t.Fatal(err)
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
