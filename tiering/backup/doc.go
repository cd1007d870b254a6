// Package backup copies a whole spool into a store and makes a spool of it again: segments, sessions, cursors and retained messages as
// they were at one position of the journal.
//
//	PREFIX/segments/STREAM/0000000000000001-SHA.db   each once, whatever backups have it
//	PREFIX/backups/20310501T120000.000Z/claim        while it is made
//	PREFIX/backups/20310501T120000.000Z/meta.db      the state
//	PREFIX/backups/20310501T120000.000Z/backup.json  what belongs to it, written last: without it there is no backup
//
// A backup of a running gateway holds nobody up; its segments are not removed meanwhile. Restore checks every byte before the directory
// has its name.
package backup
