package manifest

import (
	"encoding/binary"
	"encoding/json"
	"hash/fnv"
	"strings"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/crypt"
)

// Topics says which topics a segment may have, in at most about 2.5 KiB: a list when there are few, else a Bloom filter of the
// topics and the levels above them. It may say yes to one that the segment does not have, never no to one that it has.
type Topics struct {
	All  bool     `json:"all,omitempty"`  // nothing is known: any
	List []string `json:"list,omitempty"` // all of them

	// Bloom has every topic down to Depth levels, and every prefix of whole levels of it. Deeper topics are cut to Depth.
	Bloom []byte `json:"bloom,omitempty"`
	Depth int    `json:"depth,omitempty"`

	// Sealed is all of the above, encrypted, with the parameters of its key in front.
	Sealed []byte `json:"sealed,omitempty"`
}

const (
	maxList     = 1 << 10 // bytes of topics in a list
	bloomBits   = 16 << 10
	bloomHashes = 6
	bloomKeys   = bloomBits / 10 // about 1 % of the answers are a wrong yes
	maxDepth    = 16
)

const topicsPurpose = "manifest topics"

// Collector makes Topics of the topics of a segment.
type Collector struct {
	list  []string
	bytes int
	over  bool
	level [maxDepth]map[string]struct{} // prefixes of 1, 2, ... levels; nil once there are too many
}

// Add takes a topic.
func (c *Collector) Add(topic string) {
	if !c.over {
		c.list = append(c.list, topic)
		c.bytes += len(topic) + 3
		c.over = c.bytes > maxList
	}
	at := 0
	for d := range maxDepth {
		i := strings.IndexByte(topic[at:], '/')
		end := len(topic)
		if i >= 0 {
			end = at + i
		}
		if c.level[d] == nil {
			if d > 0 && c.level[d-1] != nil && len(c.level[d-1]) > bloomKeys {
				return
			}
			c.level[d] = map[string]struct{}{}
		}
		if len(c.level[d]) <= bloomKeys {
			c.level[d][topic[:end]] = struct{}{}
		}
		if i < 0 {
			return
		}
		at = end + 1
	}
}

// Topics is what was collected; keys encrypts it, for a segment that is encrypted.
func (c *Collector) Topics(keys *crypt.Keyring, encrypted bool) Topics {
	t := c.plain()
	if !encrypted {
		return t
	}
	cipher, params := keys.New(topicsPurpose)
	if cipher == nil { // new files are not encrypted any more: say nothing rather than in the clear
		return Topics{All: true}
	}
	j, err := json.Marshal(t)
	if err != nil {
		return Topics{All: true}
	}
	return Topics{Sealed: cipher.Seal(params.Append(nil), j, []byte(topicsPurpose))}
}

func (c *Collector) plain() Topics {
	if !c.over {
		return Topics{List: append([]string{}, c.list...)}
	}
	t := Topics{Bloom: make([]byte, bloomBits/8)}
	keys := 0
	for d, level := range c.level {
		if level == nil {
			t.Depth = maxDepth // no topic has more levels
			break
		}
		if keys+len(level) > bloomKeys {
			break
		}
		keys += len(level)
		for key := range level {
			t.add(key)
		}
		t.Depth = d + 1
	}
	if t.Depth == 0 {
		return Topics{All: true}
	}
	return t
}

func (t *Topics) each(key string, fn func(byteAt int, mask byte) bool) bool {
	h := fnv.New128a()
	_, _ = h.Write([]byte(key)) // never fails
	sum := h.Sum(nil)
	a, b := binary.BigEndian.Uint64(sum), binary.BigEndian.Uint64(sum[8:])|1
	for i := range uint64(bloomHashes) {
		bit := (a + i*b) % uint64(8*len(t.Bloom))
		if !fn(int(bit/8), 1<<(bit%8)) {
			return false
		}
	}
	return true
}

func (t *Topics) add(key string) {
	t.each(key, func(at int, mask byte) bool { t.Bloom[at] |= mask; return true })
}

func (t *Topics) has(key string) bool {
	return t.each(key, func(at int, mask byte) bool { return t.Bloom[at]&mask != 0 })
}

// May tells whether the segment may have a topic that one of the filters matches; no filter is any topic. keys opens those of an
// encrypted segment; without the key it may.
func (t *Topics) May(filters []string, keys *crypt.Keyring) bool {
	if len(filters) == 0 || t.All {
		return true
	}
	if t.Sealed != nil {
		open, ok := t.open(keys)
		return !ok || open.May(filters, nil)
	}
	for _, f := range filters {
		if t.may(f) {
			return true
		}
	}
	return false
}

func (t *Topics) may(filter string) bool {
	if t.Bloom == nil {
		for _, topic := range t.List {
			if spool.MatchFilter(filter, topic) {
				return true
			}
		}
		return false
	}
	literal := ""
	for d, level := range strings.Split(filter, "/") {
		if level == "+" || level == "#" || d >= t.Depth {
			break
		}
		if d > 0 {
			literal += "/"
		}
		if literal += level; !t.has(literal) {
			return false
		}
	}
	return true
}

func (t *Topics) open(keys *crypt.Keyring) (open Topics, ok bool) {
	if len(t.Sealed) < crypt.ParamsSize {
		return open, false
	}
	params, err := crypt.ParseParams(t.Sealed[:crypt.ParamsSize])
	if err != nil {
		return open, false
	}
	cipher, err := keys.Open(topicsPurpose, params)
	if err != nil {
		return open, false
	}
	plain, err := cipher.Open(nil, t.Sealed[crypt.ParamsSize:], []byte(topicsPurpose))
	if err != nil || json.Unmarshal(plain, &open) != nil || open.Sealed != nil {
		return open, false
	}
	return open, true
}
