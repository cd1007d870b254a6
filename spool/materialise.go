package spool

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/forebay-gateway/forebay/spool/journal"
	"github.com/forebay-gateway/forebay/spool/segment"
)

const (
	materialiseBytes = 4 << 20         // move records to segments when there is this much: pages of bbolt are written once
	busyRate         = 64 << 20        // bytes a second, of which zstd would take a fifth of a core
	materialiseAge   = time.Second     // or when they are this old
	batchBytes       = 128 << 10       // raw bytes of a batch: zstd has enough to work with, a seek decodes little
	transactionBytes = 8 << 20         // raw bytes of one transaction: bounds the materialiser's memory
	metaAge          = time.Second     // meta.db is written this often at most, unless the journal runs short
	materialiseRetry = 1 * time.Second // after an error such as a full disk
	growStep         = 4 << 20         // how much a segment's file grows at a time: a small one must not be full from its first byte
)

// materialiseLoop moves what is durable in the journal into segments and meta.db, so that the journal's files and the
// tail's memory can be used again. It ends when done is closed.
func (s *Spool) materialiseLoop(done <-chan struct{}) {
	timer := time.NewTimer(materialiseAge)
	defer timer.Stop()
	armed := true
	for {
		select {
		case <-done:
			return
		case <-s.materialWaits:
			if !armed {
				timer.Reset(materialiseAge)
				armed = true
			}
			continue
		case <-s.materialNow:
		case <-timer.C:
			armed = false
		}
		if err := s.materialise(s.hurry.Swap(false)); err != nil {
			s.materialiseFailed(err)
			timer.Reset(materialiseRetry)
			armed = true
		}
	}
}

func (s *Spool) kickMaterialiser() { signal(s.materialNow) }

func (s *Spool) materialiseFailed(err error) {
	s.metrics.materialiseErrors.Inc()
	s.setMaterialiseError(err)
}

// materialise moves everything that is published now. force also writes meta.db, and so lets the journal go on.
func (s *Spool) materialise(force bool) error {
	s.materialiseMu.Lock()
	defer s.materialiseMu.Unlock()
	return s.materialiseLocked(force)
}

func (s *Spool) materialiseLocked(force bool) error {
	if s.gone.Load() {
		return fmt.Errorf("spool: materialise: %w", errGone)
	}
	began := s.clock.source()

	t := s.tail
	t.mu.Lock()
	lsn := t.lsn
	changes := t.changes
	t.changes = nil
	ends := make([][]Offset, len(s.streams))
	for i, st := range s.streams {
		ends[i] = make([]Offset, len(st.parts))
		for j, p := range st.parts {
			ends[i][j] = p.end // only changed under t.mu
		}
	}
	raw := s.unappliedRaw.Swap(0)
	t.mu.Unlock()
	s.busy = s.busyNow(raw, began.Sub(s.roundBegan))
	s.roundBegan = began
	s.metaChanges = append(s.metaChanges, changes...)

	// In sync mode interval the journal may be behind. A segment syncs what it takes: after a power cut it would have a
	// record whose changes, of the same entry, were in the journal only and are lost, such as the QoS 2 identifier that
	// tells its repetition.
	if err := s.journal.Sync(); err != nil {
		return fmt.Errorf("spool: materialise: %w", err)
	}

	var errs []error
	for i, st := range s.streams {
		if err := s.materialiseStream(st, lsn, ends[i]); err != nil {
			errs = append(errs, fmt.Errorf("spool: materialise %s: %w", st.name, err))
		}
	}
	t.evict()
	if len(errs) > 0 {
		// What did not get in stays in the tail and in the journal: nothing is released.
		return errors.Join(errs...)
	}
	idle := len(s.metaChanges) == 0 && lsn == s.metaApplied
	due := force || s.clock.now()-s.metaWritten >= int64(metaAge) || s.journalShort()
	if !idle && due {
		if err := s.writeMeta(lsn); err != nil {
			return fmt.Errorf("spool: materialise: %w", err)
		}
	}
	if due && (!idle || !s.releasedOnce) { // once also when idle: after a start nobody has said that the last run's files are not needed
		s.releasedOnce = true
		s.journal.Release(journal.LSN(s.metaApplied))
		signal(s.released)
	} else if !idle {
		signal(s.materialWaits) // come back for it
	}
	s.setMaterialiseError(nil)
	s.metrics.materialised(s.clock.source().Sub(began))
	return nil
}

// journalShort tells whether half of the journal waits to be released.
func (s *Spool) journalShort() bool {
	return s.journal.Room() < int64(s.cfg.Journal.FileSize)*int64(s.cfg.Journal.Files)/2
}

// materialiseStream moves the records of st below ends. The applied position goes with the last transaction; should the
// ones before it be all that a crash leaves, the replay skips what they have by its offsets.
func (s *Spool) materialiseStream(st *stream, lsn uint64, ends []Offset) error {
	batches := s.batches[:0]
	defer func() { s.keepBatches(batches) }()
	raw := 0
	from := make([]Offset, len(st.parts))
	for i, p := range st.parts {
		p.mu.RLock()
		from[i] = p.applied
		p.mu.RUnlock()
	}
	pos := append([]Offset(nil), from...)
	for i, p := range st.parts {
		for pos[i] < ends[i] {
			runtime.Gosched() // acknowledgements go first: the scheduler alone would let them wait for 10 ms
			var old segment.Batch
			if n := len(batches); n < cap(batches) {
				old = batches[:n+1][n]
			}
			b, err := p.buildBatch(pos[i], ends[i], old)
			if err != nil {
				return err
			}
			pos[i] = Offset(b.Next)
			if b.Count == 0 {
				continue
			}
			batches = append(batches, b)
			if raw += len(b.Body); raw >= transactionBytes {
				if err := s.writeBatches(st, 0, batches, pos); err != nil {
					return err
				}
				batches, raw = batches[:0], 0
			}
		}
	}
	if len(batches) == 0 {
		s.appliedTo(st, pos)
		return nil
	}
	return s.writeBatches(st, lsn, batches, pos)
}

// keepBatches keeps the memory of batches for the next round: it is as much as all that is published, and new memory had
// to be cleared and collected again.
func (s *Spool) keepBatches(batches []segment.Batch) {
	batches = batches[:cap(batches)]
	kept := 0
	for i := range batches {
		if kept += cap(batches[i].Body); kept > transactionBytes/4*5 {
			batches = batches[:i:i]
			break
		}
	}
	s.batches = batches[:0]
}

// writeBatches stores the batches in one transaction of the active segment, rolls it when it is full or old, and then
// lets the tail forget what is below next.
func (s *Spool) writeBatches(st *stream, lsn uint64, batches []segment.Batch, next []Offset) error {
	for try := 0; ; try++ {
		f, err := s.activeSegment(st)
		if err != nil {
			return err
		}
		f.seg.SetCodec(s.codecNow())
		err = f.seg.Write(max(lsn, f.seg.Applied()), batches)
		if err == nil {
			f.newest.Store(s.clock.now())
			st.segMu.Lock()
			f.refreshLocked()
			st.segMu.Unlock()
			s.appliedTo(st, next)
			if int64(f.seg.Info().StoredBytes) >= int64(s.cfg.Segment.MaxSize) || f.bytes.Load() >= 2*int64(s.cfg.Segment.MaxSize)+growStep {
				s.roll(f)
			}
			s.checkRoom()
			return nil
		}
		switch {
		case try >= 3:
			return err
		case errors.Is(err, segment.ErrFull):
			s.roll(f)
		case errors.Is(err, segment.ErrFailed), damaged(err):
			// The janitor copies what the segment has; what is still in the tail goes into a new one.
			s.log.Error("segment cannot be written to and is closed", "path", f.path, "err", err)
			f.bad.Store(true)
			s.roll(f)
		default:
			return err
		}
	}
}

// busyNow tells whether so much comes that zstd would take a good part of a core from those who bring it.
func (s *Spool) busyNow(raw int64, took time.Duration) bool {
	limit := int64(busyRate)
	if s.busy {
		limit = limit / 4 * 3 // not to and fro
	}
	return took > 0 && raw > materialiseBytes/2 && float64(raw)/took.Seconds() > float64(limit)
}

// codecNow is the configured codec, or s2 instead of zstd while much comes or the materialiser does not keep up: it is three
// times as fast, and publishers would have to wait otherwise.
func (s *Spool) codecNow() segment.Codec {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.codec == segment.CodecZstd && (s.busy || s.unapplied > s.unappliedMax/2) {
		return segment.CodecS2
	}
	return s.codec
}

// appliedTo moves the applied offsets forward and gives back the memory that Append waits for.
func (s *Spool) appliedTo(st *stream, next []Offset) {
	var freed int64
	for i, p := range st.parts {
		p.mu.Lock()
		if next[i] > p.applied {
			freed += p.memoryLocked(p.applied, next[i])
			p.applied = next[i]
		}
		p.mu.Unlock()
	}
	s.unappliedDone(freed)
}

// memoryLocked is what the tail holds of [from, to).
func (p *partition) memoryLocked(from, to Offset) (n int64) {
	for from < to {
		c := p.chunkLocked(from)
		if c == nil {
			if c = p.chunkAfterLocked(from); c == nil || c.first >= to {
				return n
			}
			from = c.first
		}
		end := min(c.next(), to)
		if from == c.first && end == c.next() {
			n += c.bytes
		} else {
			for i := from; i < end; i++ {
				n += int64(recordMemory(&c.records[i-c.first]))
			}
		}
		from = end
	}
	return n
}

func (s *Spool) unappliedDone(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unapplied -= n
	s.roomChangedLocked()
}
