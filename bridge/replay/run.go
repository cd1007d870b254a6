package replay

import (
	"context"
	"errors"
	"sync"
	"time"
)

// launchLocked has a job run.
func (e *Engine) launchLocked(j *job) error {
	limit, err := parseRate(j.def.Request.Rate, e.cfg.RecordsPerSecond)
	if err != nil {
		return err
	}
	sink, err := e.open(j)
	if err != nil {
		return err
	}
	soft, stop := context.WithCancel(context.Background())
	hard, kill := context.WithCancel(context.Background())
	now := e.now()
	sent := j.status(now).Sent
	j.mu.Lock()
	j.limiter = &limiter{rate: limit, now: time.Now}
	if p, ok := sink.(Placed); ok {
		j.upstream = p.Upstream()
	}
	j.began, j.movedAt, j.sentFirst, j.ending = now, time.Now(), sent, ""
	j.soft, j.hard, j.done = stop, kill, make(chan struct{})
	done := j.done
	j.mu.Unlock()
	e.running.Go(func() {
		defer close(done)
		defer kill()
		defer stop()
		e.run(soft, hard, stop, j, sink)
	})
	return nil
}

// run carries a job to its end, or as far as it may.
func (e *Engine) run(soft, hard context.Context, stop func(), j *job, sink Sink) {
	watching, enough := context.WithCancel(context.Background())
	var watcher sync.WaitGroup
	watcher.Go(func() { e.watch(watching, j, sink) })

	var walking sync.WaitGroup
	var mu sync.Mutex
	var failed error
	slots := make(chan struct{}, partitionsAtOnce)
	for _, r := range j.def.Ranges {
		if j.next(r.Partition) >= r.To {
			continue
		}
		walking.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			err := e.walk(soft, hard, j, sink, r)
			if err == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if failed == nil && (soft.Err() == nil || !errors.Is(err, context.Canceled)) { // of somebody else's context it is an error
				failed = err
			}
			stop() // the others end too
		})
	}
	walking.Wait()
	enough()
	watcher.Wait()
	if p, ok := sink.(Previewer); ok && j.def.Request.DryRun {
		preview := p.Preview()
		j.mu.Lock()
		j.preview = &preview
		j.mu.Unlock()
	}
	sink.Close()
	e.ended(j, failed, soft.Err() != nil)
}

// ended takes down how a run ended: an error, or that it was stopped.
func (e *Engine) ended(j *job, err error, stopped bool) {
	j.mu.Lock()
	ending := j.ending
	j.problem = nil
	j.mu.Unlock()
	switch {
	case ending == "" && stopped && e.isClosing():
		return // it goes on after the next start
	case ending != "" && stopped:
		j.end(ending, nil, e.now())
	case err != nil:
		j.end(Failed, err, e.now())
	default:
		j.end(Done, nil, e.now())
	}
	e.save(j)
	s := j.status(e.now())
	attrs := []any{
		"job", s.ID, "state", s.State, "sent", s.Sent, "left_out", s.LeftOut, "refused", s.Refused, "expired", s.Expired, "lost", s.Lost,
		"records_per_second", int(s.RecordsPerSecond),
	}
	if err != nil {
		e.log.Error("replay ended", append(attrs, "err", err)...)
		return
	}
	e.log.Info("replay ended", attrs...)
}

func (e *Engine) isClosing() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closing
}

const quietAfter = 30 * time.Second // without a page: what is read is not there

// watch tells what a job waits for, when that begins and when it is over.
func (e *Engine) watch(ctx context.Context, j *job, sink Sink) {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	told := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		p := sink.Problem()
		j.mu.Lock()
		if p == nil && time.Since(j.movedAt) > quietAfter {
			p = &Problem{
				Reason: "reading", Error: "nothing could be read for " + quietAfter.String(), Since: j.movedAt,
				Hint: "look at /healthz and at forebay tier ls: the store of cold segments may not be reachable",
			}
		}
		j.problem = p
		j.mu.Unlock()
		switch {
		case p != nil && p.Reason != told:
			told = p.Reason
			e.log.Warn("replay waits", "job", j.def.ID, "reason", p.Reason, "err", p.Error, "hint", p.Hint)
		case p == nil && told != "":
			told = ""
			e.log.Info("replay is under way again", "job", j.def.ID)
		}
	}
}

// end sets the state of a job that does not run any more.
func (j *job) end(s State, err error, at time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.def.State, j.def.Ended, j.def.Error, j.problem = s, at, "", nil
	if err != nil {
		j.def.Error = err.Error()
	}
}

// reopen sets a job running, and returns how it was.
func (j *job) reopen() definition {
	j.mu.Lock()
	defer j.mu.Unlock()
	before := j.def
	j.def.State, j.def.Error, j.def.Ended = Running, "", time.Time{}
	return before
}
