package vfs

import "os"

// fdatasync is a full sync: macOS has no fdatasync that reaches the platter, and os.File.Sync uses F_FULLFSYNC.
func fdatasync(f *os.File) error { return f.Sync() }
