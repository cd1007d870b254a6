package replay

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// What a job is, and how far, is state of the spool:
//
//	key    <id>                               value  the definition as JSON, with its version
//	key    <id>/p/<partition>                 value  1 <next offset> <sent> <bytes> <left out> <refused> <expired>
//	key    <id>/g/<partition>/<first offset>  value  1 <offset behind> <reason>
//
// where 1 is the version.
const (
	space        = "replay"
	stateVersion = 1
	version      = "1"
)

// State is where a job is in its life.
type State string

// The states. A job that runs goes on after a restart.
const (
	Running   State = "running"
	Done      State = "done"
	Failed    State = "failed"    // it can be resumed once what its error says is changed
	Cancelled State = "cancelled" // it can be resumed
)

// States are all states, for metrics that exist at zero.
var States = []State{Running, Done, Failed, Cancelled}

// definition is what is durable of a job besides its positions.
type definition struct {
	Version  int       `json:"version"`
	ID       string    `json:"id"`
	Created  time.Time `json:"created"`
	Request  Request   `json:"request"`
	Since    time.Time `json:"since,omitzero"`
	Until    time.Time `json:"until,omitzero"`
	Ranges   []Range   `json:"ranges"`
	State    State     `json:"state"`
	Error    string    `json:"error,omitempty"`
	Ended    time.Time `json:"ended,omitzero"`
	Refusals []Refusal `json:"refusals,omitempty"`
}

func (d *definition) change() spool.Change {
	b, err := json.Marshal(d)
	if err != nil {
		panic(fmt.Sprintf("BUG: replay: %v", err))
	}
	return spool.Change{Space: space, Key: d.ID, Value: b}
}

// position is how far a partition is.
type position struct {
	next spool.Offset
	Tally
	expired uint64
}

func (p *position) change(id string, partition int) spool.Change {
	return spool.Change{
		Space: space, Key: fmt.Sprintf("%s/p/%d", id, partition),
		Value: fmt.Appendf(nil, "%s %d %d %d %d %d %d", version, p.next, p.Sent, p.Bytes, p.LeftOut, p.Refused, p.expired),
	}
}

func (p *position) parse(value []byte) error {
	words := strings.Fields(string(value))
	if len(words) > 0 && words[0] != version {
		return spool.ErrUnsupported
	}
	if len(words) != 7 {
		return fmt.Errorf("%q is damaged", value)
	}
	var n [6]uint64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseUint(words[i+1], 10, 64); err != nil {
			return fmt.Errorf("%q is damaged", value)
		}
	}
	p.next, p.Sent, p.Bytes, p.LeftOut, p.Refused, p.expired = spool.Offset(n[0]), n[1], n[2], n[3], n[4], n[5]
	return nil
}

// Gap are offsets [From, To) of the range that were gone before the job came to them.
type Gap struct {
	Partition int          `json:"partition"`
	From      spool.Offset `json:"from"`
	To        spool.Offset `json:"to"`
	Reason    string       `json:"reason"`
}

func (g *Gap) change(id string) spool.Change {
	return spool.Change{Space: space, Key: fmt.Sprintf("%s/g/%d/%d", id, g.Partition, g.From), Value: fmt.Appendf(nil, "%s %d %s", version, g.To, g.Reason)}
}

// load takes up one key of the space; jobs has those that came before, and their keys come after the job's own.
func load(jobs map[string]*job, key string, value []byte) error {
	id, rest, sub := strings.Cut(key, "/")
	if !sub {
		var d definition
		if err := json.Unmarshal(value, &d); err != nil {
			return fmt.Errorf("replay %q is damaged: %w", key, err)
		}
		if d.Version != stateVersion {
			return fmt.Errorf("replay %q: version %d: %w", key, d.Version, spool.ErrUnsupported)
		}
		jobs[id] = newJob(d)
		return nil
	}
	j := jobs[id]
	if j == nil {
		return nil // of a job that was forgotten while a position was on its way
	}
	kind, rest, _ := strings.Cut(rest, "/")
	part, at, _ := strings.Cut(rest, "/")
	p, err := strconv.Atoi(part)
	if err != nil {
		return fmt.Errorf("replay: key %q is damaged", key)
	}
	switch kind {
	case "p":
		if pos := j.pos[p]; pos != nil {
			if err := pos.parse(value); err != nil {
				return fmt.Errorf("replay: position %q: %w", key, err)
			}
		}
	case "g":
		g := Gap{Partition: p}
		words := strings.SplitN(string(value), " ", 3)
		from, err1 := strconv.ParseUint(at, 10, 64)
		if len(words) == 3 && err1 == nil && words[0] == version {
			to, err2 := strconv.ParseUint(words[1], 10, 64)
			if err2 == nil {
				g.From, g.To, g.Reason = spool.Offset(from), spool.Offset(to), words[2]
				j.gaps = append(j.gaps, g)
				return nil
			}
		}
		return fmt.Errorf("replay: gap %q = %q is damaged", key, value)
	}
	return nil
}
