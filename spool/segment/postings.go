package segment

import (
	"encoding/binary"
)

// Keys calls fn for every key of the kind in the index, in order, with the number of batches that have it. An error of fn
// is returned as it is. ErrNotSealed and ErrNoIndex are those of Lookup.
func (s *Segment) Keys(kind Kind, fn func(key string, batches int) error) error {
	if err := s.indexed(kind); err != nil {
		return s.wrap("keys", err)
	}
	for n := uint32(0); ; n++ {
		raw, _, ok, err := s.indexBlock(kind, n)
		if err != nil || !ok {
			return s.wrap("keys", err)
		}
		for len(raw) > 0 {
			key, batches, rest, err := cutPosting(raw)
			if err != nil {
				return s.wrap("keys", place(s.path, -1, 0, err))
			}
			if err := fn(string(key), batches); err != nil {
				return err
			}
			raw = rest
		}
	}
}

// indexed tells why there is no index of the kind; nil when there is one.
func (s *Segment) indexed(kind Kind) error {
	st := s.state.Load()
	switch {
	case !st.sealed:
		return ErrNotSealed
	case kind == KindTopic && st.topics < 0, kind == KindClient && st.clients < 0, kind != KindTopic && kind != KindClient:
		return ErrNoIndex
	}
	return nil
}

// cutPosting takes the first entry off a block: its key and how many batches have it.
func cutPosting(raw []byte) (key []byte, batches int, rest []byte, err error) {
	n, w := binary.Uvarint(raw)
	if w <= 0 || n > uint64(len(raw)-w) {
		return nil, 0, nil, errPostings
	}
	key, raw = raw[w:w+int(n)], raw[w+int(n):]
	count, w := binary.Uvarint(raw)
	if w <= 0 || count > uint64(len(raw)-w) { // a number takes a byte at least
		return nil, 0, nil, errPostings
	}
	raw = raw[w:]
	for range count {
		_, w := binary.Uvarint(raw)
		if w <= 0 {
			return nil, 0, nil, errPostings
		}
		raw = raw[w:]
	}
	return key, int(count), raw, nil
}
