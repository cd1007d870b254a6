package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// errTaken means that another process delivers under the same transactional IDs.
var errTaken = errors.New("another gateway with the same gateway.id has taken over")

// notTaken is asked before a transactor that has lost its producer makes a new one. What it lost it to may be a broker that
// forgot it or a commit that nobody answered: then it goes on. It may also be another gateway with the same ID, which was
// started while this one was frozen, or behind a partition of the network: that one has fenced this one, and left a mark among the
// positions. Both sides of a race see the mark of the one that fenced last, so that one of them is left, and it is never a process
// that was opened before the other.
func (t *transactor) notTaken(ctx context.Context) error {
	t.e.mu.Lock()
	taken := t.e.taken
	t.e.mu.Unlock()
	if taken {
		return errTaken
	}
	if !t.opened { // the start of a process takes over, whatever runs
		return nil
	}
	owner, err := t.owner(ctx)
	if err != nil || owner == t.e.instance {
		return err
	}
	t.e.c.log.Error("another gateway with the same gateway.id has taken over; this one delivers nothing of the route any more",
		"transactional_id", t.id, "hint", takenHint)
	t.e.mu.Lock()
	t.e.taken = true
	t.e.mu.Unlock()
	return errTaken
}

// owner is the instance that has left the last mark.
func (t *transactor) owner(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	reader, err := t.reader(kgo.KeepControlRecords()) // the last offset is one
	if err != nil {
		return "", err
	}
	defer reader.Close()
	ends, err := kadm.NewClient(reader).ListCommittedOffsets(ctx, t.e.offset)
	if err != nil {
		return "", err
	}
	end, ok := ends.Lookup(t.e.offset, t.partition())
	if !ok || end.Err != nil {
		return "", fmt.Errorf("topic %s partition %d has no end: %w", t.e.offset, t.partition(), end.Err)
	}
	owner := ""
	for at := int64(0); at < end.Offset; {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return "", err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			at = r.Offset + 1
			if string(r.Key) == t.id+"\x00" && !r.Attrs.IsControl() {
				owner, _, _ = strings.Cut(string(r.Value), "/")
			}
		})
	}
	return owner, nil
}
