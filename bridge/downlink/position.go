package downlink

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// The state of downlinks in the spool:
//
//	space downlink
//	  <name>                     a known, as JSON: which topics the downlink has looked for
//	  <name>/<topic>/<partition> 1 <topic ID, hex> <leader epoch> <next offset>
//	space downlink-paused
//	  <name>                     1 <Unix time in nanoseconds since when>
//
// where 1 is the version. A position is written in one entry with the record before it.
const (
	positionSpace = "downlink"
	pausedSpace   = "downlink-paused"
	stateVersion  = "1"
)

// place is where the reading of a partition goes on.
type place struct {
	id    [16]byte // of the topic, zero where the cluster knows none
	epoch int32    // of the leader of the record before, -1 when it is not known
	next  int64
}

func (p place) value() []byte {
	b := make([]byte, 0, 64)
	b = append(b, stateVersion...)
	b = append(b, ' ')
	b = hex.AppendEncode(b, p.id[:])
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(p.epoch), 10)
	b = append(b, ' ')
	return strconv.AppendInt(b, p.next, 10)
}

func parsePlace(value []byte) (p place, err error) {
	f := strings.Split(string(value), " ")
	if f[0] != stateVersion {
		return p, spool.ErrUnsupported
	}
	if len(f) != 4 {
		return p, fmt.Errorf("%q is damaged", value)
	}
	id, err1 := hex.DecodeString(f[1])
	epoch, err2 := strconv.ParseInt(f[2], 10, 32)
	next, err3 := strconv.ParseInt(f[3], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || len(id) != len(p.id) || next < 0 {
		return p, fmt.Errorf("%q is damaged", value)
	}
	copy(p.id[:], id)
	p.epoch, p.next = int32(epoch), next
	return p, nil
}

// known is what a downlink has looked for.
type known struct {
	Version int       `json:"v"`
	Topics  string    `json:"topics"`            // names or pattern of the configuration, for which from has been applied
	At      time.Time `json:"at"`                // when
	Pending []string  `json:"pending,omitempty"` // topics and partitions of them that could not be looked at then
}

// looksFor is what the configuration names.
func (c Config) looksFor() string {
	if c.Pattern != "" {
		return "/" + c.Pattern + "/"
	}
	return strings.Join(c.Topics, " ")
}

func same(a, b Config) bool { return reflect.DeepEqual(a, b) }

func positionKey(name string, p kafka.Partition) string {
	return name + "/" + p.Topic + "/" + strconv.Itoa(int(p.N))
}

// load gives downlinks their positions and pauses. What belongs to none stays: a downlink that comes back goes on where it was.
func (e *Engine) load(links []*downlink) error {
	byName := make(map[string]*downlink)
	for _, d := range links {
		byName[d.cfg.Name] = d
	}
	err := e.o.Log.Load(positionSpace, func(key string, value []byte) error {
		name, rest, isPosition := strings.Cut(key, "/")
		d := byName[name]
		if d == nil {
			return nil
		}
		if !isPosition {
			var k known
			if err := json.Unmarshal(value, &k); err != nil {
				return fmt.Errorf("state %q: %w", key, err)
			}
			if k.Version != 1 {
				return fmt.Errorf("state %q of version %d: %w", key, k.Version, spool.ErrUnsupported)
			}
			d.known = k
			return nil
		}
		topic, number, _ := strings.Cut(rest, "/")
		n, err := strconv.ParseInt(number, 10, 32)
		if err != nil {
			return fmt.Errorf("position %q is damaged", key)
		}
		at, err := parsePlace(value)
		if err != nil {
			return fmt.Errorf("position %q: %w", key, err)
		}
		d.places[kafka.Partition{Topic: topic, N: int32(n)}] = at
		return nil
	})
	if err != nil {
		return err
	}
	return e.o.Log.Load(pausedSpace, func(key string, value []byte) error {
		version, ns, _ := strings.Cut(string(value), " ")
		at, err := strconv.ParseInt(ns, 10, 64)
		switch {
		case version != stateVersion:
			return fmt.Errorf("paused %q: %w", key, spool.ErrUnsupported)
		case err != nil:
			return fmt.Errorf("paused %q = %q is damaged", key, value)
		}
		if d := byName[key]; d != nil {
			d.pausedSince = time.Unix(0, at)
		}
		return nil
	})
}
