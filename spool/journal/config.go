package journal

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/forebay-gateway/forebay/spool/vfs"
)

// Mode says when a group is acknowledged.
type Mode uint8

const (
	// ModeSync acknowledges after the fdatasync.
	ModeSync Mode = iota
	// ModeInterval acknowledges after the write and syncs in the background.
	ModeInterval
)

// String returns the word of the configuration file.
func (m Mode) String() string {
	switch m {
	case ModeSync:
		return "sync"
	case ModeInterval:
		return "interval"
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// MarshalText implements encoding.TextMarshaler.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Mode) UnmarshalText(b []byte) error {
	switch string(b) {
	case "sync":
		*m = ModeSync
	case "interval":
		*m = ModeInterval
	default:
		return fmt.Errorf("%q is neither sync nor interval", b)
	}
	return nil
}

// Config is what an operator sets, by way of the spool's configuration.
type Config struct {
	Dir          string        // directory of the journal files and of nothing else
	FileSize     int64         // size of each file, 1 MiB to 1 GiB, a multiple of 4 KiB
	Files        int           // files in rotation, at least 2; one more may exist for a while after a start or a failure
	Sync         Mode          // when Append returns
	SyncInterval time.Duration // ModeInterval: longest time that a written group waits for its sync to begin
}

const (
	minFileSize = 1 << 20
	maxFileSize = 1 << 30 // offsets inside a file and frame lengths fit 32 bits with room to spare
)

// DefaultConfig is 3 files of 64 MiB in mode sync; Dir is left to the caller.
func DefaultConfig() Config {
	return Config{FileSize: 64 << 20, Files: 3, Sync: ModeSync, SyncInterval: 10 * time.Millisecond}
}

// Validate returns all faults, each with its key first.
func (c Config) Validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("dir: must be set"))
	}
	if c.FileSize < minFileSize || c.FileSize > maxFileSize || c.FileSize%blockSize != 0 {
		errs = append(errs, fmt.Errorf("file_size: %d is not a multiple of 4KiB between 1MiB and 1GiB", c.FileSize))
	}
	if c.Files < 2 || c.Files > 1024 {
		errs = append(errs, fmt.Errorf("files: %d is not between 2 and 1024", c.Files))
	}
	if c.Sync > ModeInterval {
		errs = append(errs, fmt.Errorf("sync: %v is unknown", c.Sync))
	}
	if c.Sync == ModeInterval && (c.SyncInterval < time.Millisecond || c.SyncInterval > time.Minute) {
		errs = append(errs, fmt.Errorf("sync_interval: %v is not between 1ms and 1m", c.SyncInterval))
	}
	return errors.Join(errs...)
}

// Options is what the program wires. The zero value is ready: the operating system's files, no log.
type Options struct {
	Logger *slog.Logger     // nil: discard
	FS     vfs.FS           // nil: vfs.OS
	Now    func() time.Time // nil: time.Now; written into headers and frames for people to read, never used to decide

	// Quarantine is the directory where damaged files are moved once they are released or when their header cannot be
	// read. Empty: they stay in Dir under the name <file>.damaged.
	Quarantine string

	// Sealer, when set, encrypts the payloads.
	Sealer Sealer

	// OnSync, when set, is called with the duration of each fdatasync of the acknowledgement path.
	OnSync func(time.Duration)
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if o.FS == nil {
		o.FS = vfs.OS
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}
