// Package vfs is the small part of a file system that the spool writes through.
//
// It exists so that the promises of the spool can be shown and not only claimed: the tests of the journal, of the
// segments and of the meta database run on file systems of package vfstest that record each write and sync and rebuild
// what a power cut may leave, or that fail the n-th call. In service there is one implementation, [OS].
//
// # What is durable when
//
// A write is durable after a [File.Datasync] or [File.Sync] of that file returned nil; before that, any subset of its
// 512-byte sectors may survive a power cut. A name (created, renamed, removed) is durable after [FS.SyncDir] of the
// directory that holds it returned nil; before that, either state may be found. Syncing a file promises nothing about
// its name.
//
// A sync that failed may not be called again in the hope of a better answer: the kernel reports a failed write-back
// once, marks the pages clean, and the next sync then succeeds over data that never reached the disk. Whoever gets an
// error from a sync must treat what was written since the last good sync as unknown.
package vfs
