package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/mapping"
)

// headerRedrive marks a record that was a dead letter: its value is when it was sent again. Its place is not that of its
// time: what came behind it has gone before.
const headerRedrive = "forebay.redrive"

// How a redrive goes on.
const (
	maxRedrive      = 200              // dead letters of a page
	redriveWait     = 15 * time.Second // for the outcome of a page; who asks waits for it
	redriveTopic    = 3 * time.Second  // for a Kafka topic to be known
	redriveLook     = 20 * time.Millisecond
	redriveMoved    = time.Second // between looks whether routes have gone elsewhere
	maxRedriveBytes = 16 << 20    // of a page in memory
)

// ErrBusy means that the same is under way already.
var ErrBusy = errors.New("another redrive is running")

// Redrive sends the dead letters of a page through their routes again, as the routes are now: with their own time, ID and
// headers, and one header more. What Kafka has taken is no dead letter any more; what it refuses again stays one. Each goes
// alone, so that one tells nothing about another. With dry it only counts them.
func (d *DeadLetters) Redrive(ctx context.Context, q DeadLetterQuery, dry bool) (DeadLetterWork, error) {
	w := DeadLetterWork{DryRun: dry, Failed: []DeadLetterFailed{}}
	if !dry {
		if q.Limit <= 0 || q.Limit > maxRedrive {
			q.Limit = maxRedrive
		}
		select {
		case d.b.redriving <- struct{}{}:
		default:
			return w, ErrBusy
		}
	}
	var chosen []DeadLetter
	bytes := 0
	next, err := d.scan(ctx, q, func(l DeadLetter) {
		if bytes += l.Bytes; dry || bytes > maxRedriveBytes && len(chosen) > 0 {
			l.rec = nil // read it again when its turn comes
		}
		chosen = append(chosen, l)
	})
	w.Selected, w.Next = len(chosen), next
	if err != nil || dry || len(chosen) == 0 {
		if !dry {
			<-d.b.redriving
		}
		return w, err
	}
	for i, l := range chosen {
		if l.rec == nil {
			chosen, w.Selected, w.Next = chosen[:i], i, l.ID
			break
		}
	}
	if !d.b.enter() {
		<-d.b.redriving
		return w, ErrClosed
	}
	result := make(chan DeadLetterWork, 1)
	go func() { // it goes on when who asked has gone: what is in the air has an outcome
		defer d.b.leave()
		w := d.redrive(w, chosen)
		<-d.b.redriving // whoever is answered may ask for the next page
		result <- w
	}()
	ctx, cancel := context.WithTimeout(ctx, redriveWait)
	defer cancel()
	select {
	case w := <-result:
		return w, nil
	case <-ctx.Done():
		return w, fmt.Errorf("redrive of %d dead letters goes on; those that Kafka takes are marked: %w", len(chosen), ctx.Err())
	}
}

// inAir is a dead letter that has been sent and has no outcome.
type inAir struct {
	r      *route
	up     *upstream
	flight *kafka.Flight
}

// redrive sends dead letters and waits for the outcome of each, or until its route has gone to another upstream.
func (d *DeadLetters) redrive(w DeadLetterWork, letters []DeadLetter) DeadLetterWork {
	type outcome struct {
		i   int
		res kafka.Result
	}
	outcomes := make(chan outcome, len(letters))
	fail := func(l *DeadLetter, reason string, err error) {
		f := DeadLetterFailed{ID: l.ID, Route: l.Route, Reason: reason}
		if err != nil {
			f.Error = err.Error()
		}
		w.Failed = append(w.Failed, f)
	}
	air := make(map[int]inAir)
	var taken []DeadLetter
	unusable := make(map[string]error) // Kafka topics: waiting for one is enough
	at := d.b.now().UTC().AppendFormat(nil, time.RFC3339Nano)
	for i := range letters {
		l := &letters[i]
		if d.b.isClosing() { // each may wait for seconds
			fail(l, "closed", ErrClosed)
			continue
		}
		if l.Downlink != nil {
			if err := d.publish(l); err != nil {
				fail(l, "downlink", err)
			} else {
				taken = append(taken, *l)
			}
			continue
		}
		r, topic, way, err := d.destination(l, unusable)
		if err != nil {
			fail(l, "route", err)
			continue
		}
		defer way.up.Release(topic)
		n := topic.Status().Partitions
		m := r.message(way.scratch, l.rec, &way.decision)
		m.AddHeader(headerRedrive, at)
		held := way.up.Topic(topic.Name, r.cfg.CreateTopics) // until it has landed, which may be after this
		f := &kafka.Flight{Topic: topic, Partition: way.decision.PartitionOf(n), Messages: []kafka.Message{m}}
		f.Done = func(_ *kafka.Flight, res kafka.Result) {
			way.up.Release(held)
			outcomes <- outcome{i, res}
		}
		air[i] = inAir{r, way.up, f}
		way.up.Ship(f)
	}
	land := func(o outcome) {
		l := &letters[o.i]
		if _, waits := air[o.i]; !waits { // it was given up, and has landed after all
			if o.res.Acked != 1 {
				return // that was told
			}
			w.Failed = slices.DeleteFunc(w.Failed, func(f DeadLetterFailed) bool { return f.ID == l.ID })
		}
		delete(air, o.i)
		if o.res.Acked == 1 {
			taken = append(taken, *l)
			return
		}
		fail(l, o.res.Verdict.Reason, o.res.Verdict.Err)
	}
	look := time.NewTicker(redriveMoved)
	defer look.Stop()
	for len(air) > 0 {
		select {
		case o := <-outcomes:
			land(o)
			continue
		case <-look.C:
		}
		for len(outcomes) > 0 { // what has landed is not given up
			land(<-outcomes)
		}
		left := make(map[*upstream]bool) // with something of ours in the air
		for i, a := range air {
			if a.r.upstream() != a.up {
				delete(air, i)
				if a.up.Withdraw(a.flight) { // its Done is not called
					a.up.Release(a.flight.Topic)
				} else {
					left[a.up] = true
				}
				fail(&letters[i], "moved", a.moved())
			}
		}
		for up := range left {
			if !slices.ContainsFunc(d.b.routes, func(r *route) bool { return r.upstream() == up }) {
				if n := up.Status().Outstanding; n > 0 {
					up.Renew(n) // nobody waits for what is in the air there
				}
			}
		}
	}
	if len(taken) == 0 {
		if len(w.Failed) > 0 {
			d.b.log.Warn("dead letters could not be redriven", "failed", len(w.Failed), "first", w.Failed[0].ID, "reason", w.Failed[0].Reason, "err", w.Failed[0].Error)
		}
		return w
	}
	ctx, cancel := context.WithTimeout(context.Background(), redriveWait)
	defer cancel()
	if err := d.settle(ctx, taken, d.redriven); err != nil {
		d.b.log.Error("dead letters were sent but could not be marked; they are still shown", "records", len(taken), "err", err)
		for i := range taken {
			fail(&taken[i], "mark", err)
		}
		return w
	}
	w.Done = len(taken)
	d.b.log.Info("dead letters redriven", "records", w.Done, "failed", len(w.Failed))
	return w
}

// moved says what becomes of a dead letter whose route has gone to another upstream: the one that it is on its way to may never answer.
func (a inAir) moved() error {
	from, to := a.up.Name(), a.r.upstream().Name()
	return fmt.Errorf("route %s went from upstream %s to %s while it was on its way: %s may have it, or get it later; redriven again it goes to %s",
		a.r.cfg.Name, from, to, from, to)
}

// publish sends a dead letter through its downlink again, as that is now.
func (d *DeadLetters) publish(l *DeadLetter) error {
	down := d.b.down.Load()
	switch {
	case down == nil:
		return errors.New("no downlink runs")
	case l.Downlink.Cut || l.Downlink.LeftOut > 0:
		return fmt.Errorf("it is not kept as a whole: write offset %d of topic %s partition %d to its topic again", l.Downlink.Offset, l.KafkaTopic, l.KafkaPartition)
	}
	ctx, cancel := context.WithTimeout(context.Background(), redriveTopic)
	defer cancel()
	return down.Redrive(ctx, l.Route, l.Downlink.incoming(l.KafkaTopic, l.KafkaPartition, l.rec.Payload))
}

// way is where a dead letter goes when it is sent again.
type way struct {
	up       *upstream
	scratch  *mapping.Scratch
	decision mapping.Decision
}

// destination is the route of a dead letter, its Kafka topic, which the caller releases, and what the route makes of it now.
func (d *DeadLetters) destination(l *DeadLetter, unusable map[string]error) (_ *route, _ *kafka.Topic, w way, err error) {
	var r *route
	for _, have := range d.b.routes {
		if have.cfg.Name == l.Route {
			r = have
		}
	}
	if r == nil {
		return nil, nil, w, fmt.Errorf("route %s is not in the configuration any more", l.Route)
	}
	w.up = r.upstream()
	switch {
	case r.dead:
		return nil, nil, w, fmt.Errorf("route %s reads the dead letters now", l.Route)
	case r.wasDown(l.rec):
		return nil, nil, w, fmt.Errorf("route %s leaves it out now: %v", l.Route, mapping.CameDown)
	case r.isPaused():
		return nil, nil, w, fmt.Errorf("route %s is paused", l.Route)
	case !w.up.Up():
		return nil, nil, w, fmt.Errorf("upstream %s is not reachable", w.up.Name())
	}
	w.scratch = r.mapper.NewScratch(d.b.now)
	w.decision = r.mapper.Place(w.scratch, l.rec)
	switch {
	case w.decision.Action == mapping.Refuse:
		return nil, nil, w, fmt.Errorf("%v: %w", w.decision.Reason, w.decision.Err)
	case w.decision.Action == mapping.Leave:
		return nil, nil, w, fmt.Errorf("route %s leaves it out now: %v", l.Route, w.decision.Reason)
	}
	name := w.decision.Topic
	if !w.decision.Constant {
		name, _ = r.admit(name, w.decision.Overflow)
	}
	key := w.up.Name() + "/" + name
	if err := unusable[key]; err != nil {
		return nil, nil, w, err
	}
	topic := w.up.Topic(name, r.cfg.CreateTopics)
	for until := time.Now().Add(redriveTopic); topic.Status().Partitions == 0; time.Sleep(redriveLook) {
		s := topic.Status()
		if time.Now().Before(until) && (s.Fault == nil || s.Fault.Class == kafka.Retry) {
			continue
		}
		w.up.Release(topic)
		err := fmt.Errorf("topic %s is not known yet", name)
		if s.Fault != nil {
			err = fmt.Errorf("topic %s: %s: %w", name, s.Fault.Reason, s.Fault.Err)
		}
		unusable[key] = err
		return nil, nil, w, err
	}
	return r, topic, w, nil
}
