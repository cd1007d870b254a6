package config

import (
	"fmt"
	"log/slog"
)

// Level is how important a log line must be to be written.
type Level string

// The levels.
const (
	LevelDebug Level = "debug"
	LevelInfo  Level = "info"
	LevelWarn  Level = "warn"
	LevelError Level = "error"
)

// UnmarshalText takes the four levels and nothing else.
func (l *Level) UnmarshalText(text []byte) error {
	switch v := Level(text); v {
	case LevelDebug, LevelInfo, LevelWarn, LevelError:
		*l = v
		return nil
	}
	return fmt.Errorf("%q is not a level: want debug, info, warn or error", text)
}

// Slog is l as slog has it.
func (l Level) Slog() slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l)); err != nil {
		return slog.LevelInfo // the zero Config of a test
	}
	return level
}

// Format is how a log line is written.
type Format string

// The formats.
const (
	FormatText Format = "text"
	FormatJSON Format = "json"
)

// UnmarshalText takes the two formats and nothing else.
func (f *Format) UnmarshalText(text []byte) error {
	switch v := Format(text); v {
	case FormatText, FormatJSON:
		*f = v
		return nil
	}
	return fmt.Errorf("%q is not a log format: want text or json", text)
}
