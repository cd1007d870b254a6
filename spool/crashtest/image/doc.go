// Package image is a disk whose power can be cut: a file system inside an image file, mounted by a loop device. What the inner
// file system has not been told to sync is in its own page cache and not in the image, so that a copy of the image as it is
// while whoever writes to it is stopped is the disk after a power cut. See package crashtest.
package image
