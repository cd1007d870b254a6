// Package vfstest has file systems for tests that want to know what a power cut, a full disk or a failing disk does.
//
//   - [Disk] is a disk in memory that remembers every call in order. [Disk.Cut] rebuilds what may be found on it when
//     the power fails after any of them.
//   - [Faults] wraps a file system and fails chosen calls.
//   - [Counter] wraps a file system and counts.
package vfstest
