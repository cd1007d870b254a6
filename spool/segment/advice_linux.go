package segment

import (
	"os"

	"golang.org/x/sys/unix"
)

// adviceStep keeps each request below what the kernel takes at once; it silently cuts larger ones.
const adviceStep = 512 << 10

func willNeed(f *os.File, off, n int64) {
	for ; n > 0; off, n = off+adviceStep, n-adviceStep {
		_ = unix.Fadvise(int(f.Fd()), off, min(n, adviceStep), unix.FADV_WILLNEED) // advice: reading works without
	}
}
