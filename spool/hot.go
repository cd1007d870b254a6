package spool

import (
	"math"
	"time"
)

// hot watches how much each partition carries. One that carries far more than its share has the lane that everything waits
// for, and more partitions do not help: it is one publisher, or one topic, or names that fall together.
type hot struct {
	next    int64 // when to look again
	samples []sample
	told    map[string]int64 // by stream, when it was last warned of
}

// sample is what all partitions have got, by stream and partition, at a moment.
type sample struct {
	at    int64
	loads [][]load
}

// load is what a partition has got from the start of this process on.
type load struct {
	bytes   int64 // memory size of the records
	records uint64
}

const (
	hotWindow  = time.Minute      // rates and shares are over this time
	hotStep    = 10 * time.Second // between two looks
	hotMinRate = 16 << 20 / 60    // bytes a second: a quiet stream has no hot partition
	hotRepeat  = 10 * time.Minute // between two warnings about a stream
)

// watch takes a sample when it is time for one, and says which partitions are hot.
func (h *hot) watch(s *Spool, now int64) {
	if now < h.next {
		return
	}
	h.next = now + int64(hotStep)
	fresh := sample{at: now}
	for _, st := range s.streams {
		fresh.loads = append(fresh.loads, st.loads())
	}
	if h.samples = append(h.samples, fresh); len(h.samples) == 1 {
		return
	}
	for len(h.samples) > 2 && now-h.samples[1].at >= int64(hotWindow) {
		h.samples = h.samples[1:]
	}
	old := h.samples[0]
	elapsed := time.Duration(now - old.at).Seconds()
	for i, st := range s.streams {
		h.rate(s, st, old.loads[i], fresh.loads[i], elapsed, now)
	}
}

// rate sets the rates of a stream's partitions, and the share of the hottest.
func (h *hot) rate(s *Spool, st *stream, old, fresh []load, elapsed float64, now int64) {
	var sum, most float64
	hottest := 0
	for i, p := range st.parts {
		bytes := float64(fresh[i].bytes-old[i].bytes) / elapsed
		p.mu.Lock()
		p.byteRate, p.recordRate = bytes, float64(fresh[i].records-old[i].records)/elapsed
		p.mu.Unlock()
		if sum += bytes; bytes > most {
			most, hottest = bytes, i
		}
	}
	share := 0.0
	if sum > 0 {
		share = most / sum
	}
	st.hotShare.Store(math.Float64bits(share))
	st.hottest.Store(int64(hottest))
	if !isHot(share, sum, st.writable) {
		return
	}
	if last, ok := h.told[st.name]; ok && now-last < int64(hotRepeat) {
		return
	}
	if h.told == nil {
		h.told = make(map[string]int64)
	}
	h.told[st.name] = now
	s.log.Warn("one partition carries far more than its share", "stream", st.name, "partition", hottest, "percent", int(100*share),
		"partitions", st.writable, "bytes_per_second", int64(sum), "hint", "forebay spool dump shows who publishes there")
}

// isHot tells whether a share of a stream's bytes is far more than one partition's: more than half of all, and at least
// twice what it were if all had the same.
func isHot(share, rate float64, partitions int) bool {
	return partitions > 1 && rate >= hotMinRate && share > 0.5 && share*float64(partitions) >= 2
}

// loads is what the stream's partitions have got.
func (st *stream) loads() []load {
	l := make([]load, len(st.parts))
	for i, p := range st.parts {
		p.mu.RLock()
		l[i] = p.load
		p.mu.RUnlock()
	}
	return l
}
