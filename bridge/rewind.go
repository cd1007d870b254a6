package bridge

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/forebay-gateway/forebay/spool"
)

// rewind is a stretch below the cursor that the tail goes through again, because lanes of another topic, key or filters have left
// records in it that may belong to any lane now. The entries of those lanes go; this one stays until the tail has been there, or a
// restart in the middle would leave those records out. Its entry among the positions is
//
//	key    <spool partition>/rewind
//	value  3 r <from> <until>
type rewind struct {
	from  spool.Offset
	until spool.Offset // where the cursor stood
	saved bool         // as it is here
}

func (f *feeder) rewindKey() string { return fmt.Sprintf("%s%d/%s", f.prefix, f.partition, rewindName) }

const rewindName = "rewind" // of a lane there would be a / behind it

// rewindLocked has the tail begin at from. It is called before the feeder runs.
func (f *feeder) rewindLocked(from spool.Offset, w rewind) {
	f.pos = min(f.pos, from)
	switch had := f.rewind; {
	case had == nil:
		f.rewind = &w
	case w.saved:
		had.until = max(had.until, w.until)
	default:
		had.from, had.until, had.saved = min(had.from, w.from), max(had.until, w.until), false
	}
}

// rewound goes on with a stretch that an earlier run has not got through. What keeps records from retention has followed the tail, and
// says how far it came.
func (f *feeder) rewound(from, until spool.Offset) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rewindLocked(max(from, min(f.keep.Position(f.partition), until)), rewind{from: from, until: until, saved: true})
}

// parseRewind reads an entry's value.
func parseRewind(value []byte) (from, until spool.Offset, err error) {
	fields := strings.Fields(string(value))
	if len(fields) != 4 || fields[0] != positionsVersion || fields[1] != "r" {
		return 0, 0, errFields
	}
	var at [2]uint64
	for i, field := range fields[2:] {
		if at[i], err = strconv.ParseUint(field, 10, 64); err != nil {
			return 0, 0, err
		}
	}
	return spool.Offset(at[0]), spool.Offset(at[1]), nil
}

// rewindChange is what has to be durable before the entries of old lanes go, nil when it is.
func (f *feeder) rewindChange(in string) []spool.Change {
	w := f.rewind
	if w == nil || w.saved {
		return nil
	}
	f.dropped = slices.DeleteFunc(f.dropped, func(key string) bool { return key == f.rewindKey() })
	value := fmt.Sprintf("%s r %d %d", positionsVersion, w.from, w.until)
	return []spool.Change{{Space: in, Key: f.rewindKey(), Value: []byte(value)}}
}

// endRewindLocked forgets the stretch when everything in it is dealt with: low is what the cursor may be told.
func (f *feeder) endRewindLocked(low spool.Offset) {
	if w := f.rewind; w != nil && low >= w.until {
		f.rewind = nil
		f.dropped = append(f.dropped, f.rewindKey())
		signal(f.saveC)
	}
}
