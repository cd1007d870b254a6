package mqtt

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// sysTopics are the $SYS topics that operators know from Mosquitto, by the same names and with the same meaning. They are
// measured each sys_interval and are no records: a subscriber gets what is there as retained messages, and what changes
// live, at QoS 0. A filter has to begin with $SYS to match one (MQTT 5, 4.7.2).
type sysTopics struct {
	store retainedStore
	began time.Time
	last  map[string]string // topic → value
	loads []load
	most  int // clients at once
	enc   encoder
}

// sysCount is something that is counted; load, when set, is its name below $SYS/broker/load.
type sysCount struct {
	topic, load string
	count       func(*metrics) uint64
}

var sysCounts = []sysCount{
	{"messages/received", "messages/received", func(m *metrics) uint64 { return value(m.packetsIn) }},
	{"messages/sent", "messages/sent", func(m *metrics) uint64 { return value(m.packetsOut) }},
	{"publish/messages/received", "publish/received", func(m *metrics) uint64 { return sum(m.received) }},
	{"publish/messages/sent", "publish/sent", func(m *metrics) uint64 { return sum(m.sent) }},
	{"publish/messages/dropped", "publish/dropped", (*metrics).droppedAll},
	{"publish/bytes/received", "", func(m *metrics) uint64 { return value(m.payloadIn) }},
	{"publish/bytes/sent", "", func(m *metrics) uint64 { return value(m.payloadOut) }},
	{"bytes/received", "bytes/received", func(m *metrics) uint64 { return value(m.bytesIn) }},
	{"bytes/sent", "bytes/sent", func(m *metrics) uint64 { return value(m.bytesOut) }},
	{"clients/expired", "", func(m *metrics) uint64 { return value(m.expired) }},
	{"", "connections", func(m *metrics) uint64 { return value(m.connects) }},
}

// load is the moving mean of a count's growth in a minute, over 1, 5 and 15 minutes.
type load struct {
	was  uint64
	mean [3]float64
}

var loadSpans = [3]struct {
	name string
	span time.Duration
}{{"1min", time.Minute}, {"5min", 5 * time.Minute}, {"15min", 15 * time.Minute}}

func (l *load) add(count uint64, since time.Duration) {
	perMinute := float64(count-l.was) / since.Minutes()
	l.was = count
	for i := range l.mean {
		l.mean[i] = perMinute + math.Exp(-float64(since)/float64(loadSpans[i].span))*(l.mean[i]-perMinute)
	}
}

// runSys measures until ctx ends.
func (srv *Server) runSys(ctx context.Context) {
	every := srv.cfg.SysInterval.Std()
	if every == 0 {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		srv.measureSys(every)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// measureSys sets all topics, a time since after the last call.
func (srv *Server) measureSys(since time.Duration) {
	y, m := &srv.sys, srv.metrics
	first := y.last == nil
	if first {
		y.last = make(map[string]string)
		y.loads = make([]load, len(sysCounts))
		y.began = srv.now()
		srv.setSys("version", "forebay "+srv.version)
	}
	number := func(topic string, n int) { srv.setSys(topic, strconv.Itoa(n)) }

	srv.setSys("uptime", fmt.Sprintf("%d seconds", int64(srv.now().Sub(y.began).Seconds())))
	sessions, connected := srv.allSessions(), 0
	for _, s := range sessions {
		s.mu.Lock()
		if s.conn != nil {
			connected++
		}
		s.mu.Unlock()
	}
	y.most = max(y.most, connected)
	number("clients/total", len(sessions))
	number("clients/connected", connected)
	number("clients/disconnected", len(sessions)-connected)
	number("clients/maximum", y.most)
	number("subscriptions/count", int(value(m.subscriptions)))
	number("shared_subscriptions/count", len(srv.allGroups()))
	number("retained messages/count", srv.retained.len())

	for i := range sysCounts {
		c := &sysCounts[i]
		n := c.count(m)
		if c.topic != "" {
			srv.setSys(c.topic, strconv.FormatUint(n, 10))
		}
		if c.load == "" {
			continue
		}
		l := &y.loads[i]
		if first { // a load is not known yet: what was counted before came in an unknown time
			l.was = n
		} else {
			l.add(n, since)
		}
		for j, span := range loadSpans {
			srv.setSys("load/"+c.load+"/"+span.name, strconv.FormatFloat(l.mean[j], 'f', 2, 64))
		}
	}
}

// setSys sets a topic and sends it to its subscribers when it has changed.
func (srv *Server) setSys(name, text string) {
	y := &srv.sys
	topic := "$SYS/broker/" + name
	if y.last[topic] == text {
		return
	}
	y.last[topic] = text
	now := srv.now()
	// No offset: a subscription takes it wherever on the log it begins.
	rec := &spool.Record{Topic: topic, Payload: []byte(text), Retain: true, ReceivedAt: now.UnixNano(), Offset: spool.NoOffset}
	y.store.apply(rec)
	m := srv.index.lookup(topic)
	if len(m.targets) == 0 && len(m.groups) == 0 {
		return
	}
	y.enc.reset(rec, now)
	for i := range m.targets {
		if c := m.targets[i].sess.offer(0, rec, m.targets[i].subs, &y.enc); c != nil {
			c.out.wake()
		}
	}
	for _, g := range m.groups {
		if c := g.offer(0, rec, &y.enc); c != nil {
			c.out.wake()
		}
	}
}

// retainedFor is where the retained messages of a filter are: no filter matches topics in both stores.
func (srv *Server) retainedFor(filter string) *retainedStore {
	if len(filter) >= 4 && filter[:4] == "$SYS" {
		return &srv.sys.store
	}
	return &srv.retained
}
