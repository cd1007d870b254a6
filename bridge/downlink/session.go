package downlink

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
)

// session is a consumer at work, from a start or a resume to the next pause or stop.
type session struct {
	d        *downlink
	consumer *kafka.Consumer
	ctx      context.Context
	parts    map[kafka.Partition]*partition // those of d, of which this goroutine alone makes new ones
	workers  sync.WaitGroup
	nextLook time.Time
}

const (
	lookEvery  = 5 * time.Second // at topics and partitions
	lookAgain  = time.Second     // when something is wrong with them
	highFirst  = time.Second
	highEvery  = 10 * time.Second
	pollAtOnce = 256                    // records
	stallAfter = 500 * time.Millisecond // an append that waits so long has its partition paused, so that it does not hold the others
	errorPause = 100 * time.Millisecond
	hardLimit  = 4 // times max_buffered: what paused partitions may hold beside the others
)

// read reads until ctx ends. An error means that there is no consumer.
func (d *downlink) read(ctx context.Context) error {
	consumer, err := d.up.NewConsumer(kafka.ConsumerOptions{
		Uncommitted: d.cfg.Isolation == ReadUncommitted, MaxBytes: int32(min(d.cfg.MaxBuffered, 64<<20)),
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &session{d: d, consumer: consumer, ctx: ctx, parts: make(map[kafka.Partition]*partition)}
	s.workers.Go(s.followEnds)
	for ctx.Err() == nil {
		if !time.Now().Before(s.nextLook) {
			s.look()
		}
		if s.hasRoom() {
			s.poll()
		}
	}
	cancel()
	consumer.Close()
	s.workers.Wait()
	d.mu.Lock()
	d.parts, d.looked = make(map[kafka.Partition]*partition), false
	d.mu.Unlock()
	d.buffered.Store(0)
	return nil
}

// poll takes what has come.
func (s *session) poll() {
	ctx, cancel := context.WithDeadline(s.ctx, s.nextLook)
	defer cancel()
	woken := make(chan struct{})
	go func() { // a resume, or a topic that has to be looked at
		defer close(woken)
		select {
		case <-ctx.Done():
		case <-s.d.lookC:
			s.nextLook = time.Time{}
			cancel()
		}
	}()
	fetched := s.consumer.Poll(ctx, pollAtOnce)
	cancel()
	<-woken
	records := 0
	for i := range fetched {
		records += len(fetched[i].Records)
		s.take(&fetched[i])
	}
	if len(fetched) > 0 && records == 0 {
		sleep(s.ctx, errorPause) // an error that lasts comes with each poll
	}
}

// take gives a partition's records to its worker.
func (s *session) take(f *kafka.Fetched) {
	p := s.parts[f.Partition]
	if p == nil || !p.assigned {
		return
	}
	if f.High >= 0 {
		p.mu.Lock()
		p.high = f.High
		p.mu.Unlock()
	}
	items := make([]item, 0, len(f.Records))
	for i := range f.Records {
		r := &f.Records[i]
		if r.Offset < p.want {
			continue
		}
		items = append(items, item{rec: *r, size: r.Size()})
		p.want, p.epoch = r.Offset+1, r.Epoch
	}
	if len(items) > 0 {
		p.push(items...)
	}
	if re, ok := errors.AsType[*kafka.ReadError](f.Err); ok {
		s.failed(p, re)
	} else if len(items) > 0 {
		p.setFault(nil)
	}
}

// failed deals with the error of a partition.
func (s *session) failed(p *partition, e *kafka.ReadError) {
	switch {
	case e.Cut:
		s.cut(p, e.ResetTo)
	case e.Range:
		s.consumer.Drop(p.Partition)
		p.assigned, p.lost = false, true
		s.nextLook = time.Time{}
	default:
		p.setFault(&e.Verdict)
		if e.Gone {
			s.forget(p.Topic)
			s.lookWithin(lookAgain)
		}
	}
}

// forget ends the reading of a topic until a look has found it again, as it was or as another one.
func (s *session) forget(topic string) {
	s.consumer.Forget(topic)
	for q, p := range s.parts {
		if q.Topic == topic {
			p.assigned, p.lost = false, false
		}
	}
}

func (s *session) lookWithin(d time.Duration) {
	if at := time.Now().Add(d); at.Before(s.nextLook) {
		s.nextLook = at
	}
}

func (p *partition) setFault(v *kafka.Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case v == nil:
		p.fault = nil
	case p.fault == nil:
		p.fault = &fault{*v, time.Now()}
	default:
		p.fault.Verdict = *v
	}
}

// hasRoom waits until more may be read, or something is to be done. Partitions whose appends wait are paused: what they hold does not
// count, so that the others go on.
func (s *session) hasRoom() bool {
	d := s.d
	limit := int64(d.cfg.MaxBuffered)
	for {
		total := d.buffered.Load()
		now := time.Now()
		held := int64(0)
		for _, p := range s.parts {
			held += p.pauseStalled(s.consumer, now)
		}
		if total-held < limit && total < hardLimit*limit {
			return s.ctx.Err() == nil
		}
		t := time.NewTimer(stallAfter / 2)
		select {
		case <-s.ctx.Done():
		case <-d.spaceC:
		case <-t.C:
		}
		t.Stop()
		if s.ctx.Err() != nil || !time.Now().Before(s.nextLook) {
			return false
		}
	}
}

// pauseStalled pauses the partition when its append waits for long. It returns how many bytes it holds as a paused one.
func (p *partition) pauseStalled(c *kafka.Consumer, now time.Time) int64 {
	p.mu.Lock()
	stalls := p.assigned && !p.stopped && !p.since.IsZero() && now.Sub(p.since) >= stallAfter && len(p.queue) > 0
	p.stopped = p.stopped || stalls
	held := int64(0)
	if p.stopped {
		held = int64(p.bytes)
	}
	why := p.why
	p.mu.Unlock()
	if stalls {
		c.Pause(p.Partition)
		p.d.log.Warn("partition is paused: its records wait for room in the spool", "partition", p.String(), "err", why)
	}
	return held
}

// followEnds keeps up where the partitions end, for the lag of those that nothing comes from; sooner while that of one is not known.
func (s *session) followEnds() {
	for every := highFirst; sleep(s.ctx, every); {
		every = highEvery
		topics := make(map[string]bool)
		s.d.mu.Lock()
		parts := make([]*partition, 0, len(s.d.parts))
		for _, p := range s.d.parts {
			parts = append(parts, p)
			topics[p.Topic] = true
		}
		s.d.mu.Unlock()
		for topic := range topics {
			bounds, err := s.consumer.Bounds(s.ctx, s.d.cfg.Isolation == ReadUncommitted, topic)
			if err != nil {
				continue // the lag is that of before; why is told by what reads
			}
			for _, p := range parts {
				if b, ok := bounds[p.Partition]; ok && b.Err == nil {
					p.mu.Lock()
					p.high = max(b.End, p.durable)
					p.mu.Unlock()
				}
			}
		}
		for _, p := range parts {
			p.mu.Lock()
			if p.high < 0 {
				every = highFirst
			}
			p.mu.Unlock()
		}
	}
}
