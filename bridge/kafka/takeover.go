package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// errTaken means that another process delivers under the same transactional IDs.
var errTaken = errors.New("another gateway with the same gateway.id has taken over")

// notTaken is asked before a transactor that has lost its producer makes a new one. What it lost it to may be a broker that
// forgot it or a commit that nobody answered: then it goes on. It may also be another gateway with the same ID, which was
// started while this one was frozen, or behind a partition of the network: that one has fenced this one, and left a mark among the
// positions.
//
// A process may be frozen between this look and its fencing, and then fences the one that was started meanwhile. So it looks again
// when it reads the positions, before it sends anything, and the other one finds a mark behind its own that is of a process which was
// there before: it goes on. Of two the one is left whose first mark is the later one, whoever has fenced last.
func (t *transactor) notTaken(ctx context.Context) error {
	if t.e.Taken() {
		return errTaken
	}
	if !t.opened { // the start of a process takes over, whatever runs
		return nil
	}
	taken, err := t.replaced(ctx)
	if err != nil || !taken {
		return err
	}
	return t.giveUp()
}

func (t *transactor) giveUp() error {
	t.e.c.log.Error("another gateway with the same gateway.id has taken over; this one delivers nothing of the route any more",
		"transactional_id", t.id, "hint", takenHint)
	t.e.mu.Lock()
	t.e.taken = true
	t.e.mu.Unlock()
	return errTaken
}

// mark is what t writes when it has fenced: the process, a time that makes it its own, and, but for the first one, where the first one was.
func (t *transactor) mark(now time.Time) string {
	mark := t.e.instance + "/" + strconv.FormatInt(now.UnixNano(), 10)
	if t.born > 0 {
		mark += "/" + strconv.FormatInt(t.born, 10)
	}
	return mark
}

// younger reports whether r is the mark of a process that was opened after this one.
func (t *transactor) younger(r *kgo.Record) bool {
	if string(r.Key) != t.id+"\x00" || r.Attrs.IsControl() {
		return false
	}
	part := strings.Split(string(r.Value), "/")
	born := r.Offset + 1
	if len(part) > 2 {
		if n, err := strconv.ParseInt(part[2], 10, 64); err == nil {
			born = n
		}
	}
	return part[0] != t.e.instance && born > t.born
}

// replaced reports whether a younger process has left a mark. It has left it behind all that this one has committed.
func (t *transactor) replaced(ctx context.Context) (taken bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	reader, err := t.reader(kgo.KeepControlRecords()) // the last offset is one
	if err != nil {
		return false, err
	}
	defer reader.Close()
	admin := kadm.NewClient(reader)
	ends, err := admin.ListCommittedOffsets(ctx, t.e.offset)
	if err != nil {
		return false, err
	}
	starts, err := admin.ListStartOffsets(ctx, t.e.offset)
	if err != nil {
		return false, err
	}
	end, ok := ends.Lookup(t.e.offset, t.partition())
	if !ok || end.Err != nil {
		return false, fmt.Errorf("topic %s partition %d has no end: %w", t.e.offset, t.partition(), end.Err)
	}
	start, ok := starts.Lookup(t.e.offset, t.partition())
	if !ok || start.Err != nil {
		return false, fmt.Errorf("topic %s partition %d has no start: %w", t.e.offset, t.partition(), start.Err)
	}
	at := max(t.seen, start.Offset) // somebody may have emptied it: nothing comes then
	if end.Offset < at {            // the topic was made anew; read tells the rest
		return false, nil
	}
	for at < end.Offset {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return false, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			at = r.Offset + 1
			taken = taken || t.younger(r)
		})
	}
	return taken, nil
}
