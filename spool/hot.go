package spool

import "time"

// hot watches for a partition that carries far more than its share: its lane is the one that everything waits for.
type hot struct {
	next int64              // when to look again
	raw  map[string][]int64 // by stream, at the last look
}

const (
	hotInterval = time.Minute
	hotMinBytes = 16 << 20 // a quiet stream has no hot partition
)

// watch compares what each partition has got since the last look.
func (h *hot) watch(s *Spool, now int64) {
	if now < h.next {
		return
	}
	first := h.raw == nil
	if first {
		h.raw = make(map[string][]int64)
	}
	h.next = now + int64(hotInterval)
	for _, st := range s.streams {
		raw := make([]int64, len(st.parts))
		var sum, most int64
		hottest := 0
		for i, p := range st.parts {
			p.mu.RLock()
			raw[i] = p.raw
			p.mu.RUnlock()
			n := raw[i]
			if !first {
				n -= h.raw[st.name][i]
			}
			sum += n
			if n > most {
				most, hottest = n, i
			}
		}
		h.raw[st.name] = raw
		if n := int64(st.writable); n > 1 && sum >= hotMinBytes && most*2 > sum && most*n > 4*sum {
			s.log.Warn("one partition carries far more than its share", "stream", st.name, "partition", hottest,
				"percent", most*100/sum, "partitions", n)
		}
	}
}
