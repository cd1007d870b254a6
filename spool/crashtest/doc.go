// Package crashtest cuts the power under real processes that use a spool, and takes their disk away. It has only tests.
//
// kill -9 proves little about a log: what the process wrote is in the page cache, and the page cache survives the process.
// So the spool's directory is on a file system inside an image file, mounted by a loop device. What the inner file system
// has not been told to sync is in its own page cache and not in the image. A child (this test binary, started again) opens
// the spool, tells everything that it finds, appends, and tells each acknowledgement. At a random moment it is stopped by
// SIGSTOP, and the image is copied as it is: that is the disk after a power cut. Only then the child is killed and the file
// system unmounted, which writes everything and would hide the loss. The next child opens the copy.
//
// Nothing may sync in between, and a copy during which the loop device wrote is thrown away and made again. That this rig
// can see a loss at all is itself a test: a child that acknowledges before its sync has to fail.
//
// What it does not show: a disk that loses its own volatile cache, or part of a sector. Package vfstest does, on images that
// are rebuilt write by write.
//
// The tests mount file systems: they need root and Linux, and are skipped otherwise. FOREBAY_CRASH=long runs 30 rounds
// instead of 3.
package crashtest
