package fleet

import (
	"fmt"
	"strings"
	"time"
)

// Report is what a run leaves behind; it is written as JSON.
type Report struct {
	Version string           `json:"version"`
	Run     string           `json:"run"`
	Began   time.Time        `json:"began"`
	Config  ReportConfig     `json:"config"`
	Seconds float64          `json:"publishing_seconds"`
	Rates   map[string]int64 `json:"messages_per_second"`

	Reconnects   int64            `json:"reconnects"`
	SessionsLost int64            `json:"sessions_lost"` // the broker had forgotten a session that must still live
	Refusals     map[string]int64 `json:"refusals_by_reason,omitempty"`

	Latency map[string]Latency `json:"latency"`
	Verdict Verdict            `json:"verdict"`
}

// ReportConfig is the configuration in a form that reads well.
type ReportConfig struct {
	Broker      string   `json:"broker"`
	Protocol    Protocol `json:"protocol"`
	Devices     int      `json:"devices"`
	Rate        float64  `json:"rate"`
	Profile     string   `json:"profile"`
	QoS         string   `json:"qos"`
	Payload     int      `json:"payload_bytes"`
	Window      int      `json:"window"`
	Count       int      `json:"count,omitempty"`
	Duration    string   `json:"duration,omitempty"`
	Subscribers int      `json:"subscribers"`
	SubQoS      uint8    `json:"subscriber_qos"`
	Kafka       []string `json:"kafka,omitempty"`
	KafkaTopic  []string `json:"kafka_topics,omitempty"`
}

// Snapshot is a look at a run under way.
type Snapshot struct {
	Phase        Phase
	Elapsed      time.Duration // since publishing began
	Published    int64         // handed to connections, all QoS
	Acknowledged int64
	Refused      int64
	InFlight     int64 // QoS 1 and 2, sent and not settled
	Delivered    int64 // unique messages at the subscriber that has the fewest
	Bridged      int64 // unique messages on the Kafka side
	ToDeliver    int64 // acknowledged and not at some subscriber yet
	ToBridge     int64 // acknowledged and not in Kafka yet
	Reconnects   int64
	Doubled      int64
	Reordered    int64

	Ack, Subscriber, Kafka Latency // of what came since the last Snapshot
}

// Snapshot looks at the run. Its latencies cover the time since the last call, so one caller should do it steadily.
func (f *Fleet) Snapshot() Snapshot {
	s := Snapshot{Phase: Phase(f.phase.Load()), Reconnects: f.reconnects.Load()}
	s.Elapsed = f.Elapsed()
	for q := range 3 {
		s.Published += f.ledger.sent[q].Load()
		s.Acknowledged += f.ledger.acked[q].Load()
		s.Refused += f.ledger.refused[q].Load()
	}
	for _, d := range f.devices {
		s.InFlight += int64(d.client.InFlight())
	}
	for i, sub := range f.subscribers {
		if n := sub.check.uniqueTotal(); i == 0 || n < s.Delivered {
			s.Delivered = n
		}
		s.ToDeliver = max(s.ToDeliver, sub.check.pending.Load())
		s.count(sub.check)
	}
	if f.consumer != nil {
		s.Bridged, s.ToBridge = f.consumer.check.uniqueTotal(), f.consumer.check.pending.Load()
		s.count(f.consumer.check)
		s.Kafka = f.consumer.times.Recent()
	}
	s.Ack = worst(f.ackTimes[:])
	var subs []*latency
	for _, sub := range f.subscribers {
		subs = append(subs, sub.times)
	}
	s.Subscriber = worst(subs)
	return s
}

// Elapsed is the time since publishing began; 0 before that.
func (f *Fleet) Elapsed() time.Duration {
	if Phase(f.phase.Load()) < Publishing {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.since() - f.began
}

func (s *Snapshot) count(c *checker) {
	for q := range 3 {
		s.Doubled += c.doubled[q].Load()
	}
	s.Reordered += c.reorder.Load()
}

func (c *checker) uniqueTotal() int64 {
	return c.unique[0].Load() + c.unique[1].Load() + c.unique[2].Load()
}

// worst is the recent distribution of all of ls together.
func worst(ls []*latency) Latency {
	if len(ls) == 0 {
		return Latency{}
	}
	all := newLatency()
	for _, l := range ls {
		l.mu.Lock()
		all.total.Merge(l.recent)
		l.recent.Reset()
		l.mu.Unlock()
	}
	return summary(all.total)
}

// report sums up a run that is over.
func (f *Fleet) report() *Report {
	c := f.cfg
	r := &Report{
		Version: f.opts.Version, Run: f.run, Began: f.origin.Add(f.began).UTC(),
		Config: ReportConfig{
			Broker: f.url.String(), Protocol: c.Protocol, Devices: c.Devices, Rate: c.Rate, Profile: c.Profile.String(), QoS: c.Mix.String(),
			Payload: c.Payload, Window: c.Window, Count: c.Count, Subscribers: c.Subscribers, SubQoS: c.SubscriberQoS,
			Kafka: c.Kafka, KafkaTopic: c.KafkaTopic,
		},
		Seconds:    (f.ended - f.began).Seconds(),
		Reconnects: f.reconnects.Load(), SessionsLost: f.sessionsLost.Load(),
		Refusals: make(map[string]int64), Latency: make(map[string]Latency), Rates: make(map[string]int64),
		Verdict: f.ledger.verdict(),
	}
	if c.Duration > 0 {
		r.Config.Duration = c.Duration.String()
	}
	for reason, n := range f.reasons {
		r.Refusals[fmt.Sprintf("0x%02x", reason)] = n
	}
	if r.Seconds > 0 {
		r.Rates["published"] = int64(float64(r.Verdict.Sent.Total()) / r.Seconds)
		r.Rates["acknowledged"] = int64(float64(r.Verdict.Acknowledged.Total()) / r.Seconds)
	}
	total := func(name string, ls ...*latency) {
		all := newLatency()
		for _, l := range ls {
			all.total.Merge(l.total)
		}
		r.Latency[name] = summary(all.total)
	}
	total("acknowledged", f.ackTimes[:]...)
	for _, s := range f.subscribers {
		total(s.check.name, s.times)
	}
	if f.consumer != nil {
		total(f.consumer.check.name, f.consumer.times)
	}
	if r.SessionsLost > 0 {
		r.Verdict.Reconciled = false
		r.Verdict.Faults = append(r.Verdict.Faults, fmt.Sprintf("%d sessions were lost by the broker", r.SessionsLost))
	}
	return r
}

// String is the form that ParseProfile reads.
func (p Profile) String() string {
	if !p.Bursty() {
		return p.Name
	}
	return fmt.Sprintf("%s:%s:%g", p.Name, p.Period, p.Active)
}

// Text is the report for people.
func (r *Report) Text() string {
	var b strings.Builder
	v := r.Verdict
	fmt.Fprintf(&b, "run %s: %d devices, QoS %s, window %d, %d bytes, %s, %.1f s\n",
		r.Run, r.Config.Devices, r.Config.QoS, r.Config.Window, r.Config.Payload, r.Config.Profile, r.Seconds)
	fmt.Fprintf(&b, "  published      %d (%d/s): QoS 0 %d, QoS 1 %d, QoS 2 %d\n", v.Sent.Total(), r.Rates["published"], v.Sent[0], v.Sent[1], v.Sent[2])
	fmt.Fprintf(&b, "  acknowledged   %d, refused %d, never settled %d\n", v.Acknowledged.Total(), v.Refused.Total(), v.Unsettled)
	if r.Reconnects > 0 {
		fmt.Fprintf(&b, "  reconnects     %d, sessions lost %d\n", r.Reconnects, r.SessionsLost)
	}
	for _, c := range v.Checks {
		fmt.Fprintf(&b, "  %-14s %d found, %d missing, %d doubled (QoS 2: %d), %d reordered, %d invented\n",
			c.Name, c.Unique.Total(), c.Missing.Total(), c.Doubled.Total(), c.Doubled[2], c.Reordered, c.Invented)
	}
	line := func(name string) {
		if l := r.Latency[name]; l.Count > 0 {
			fmt.Fprintf(&b, "  to %-11s p50 %.2f ms, p90 %.2f, p99 %.2f, p99.9 %.2f, max %.2f\n", name, l.P50, l.P90, l.P99, l.P999, l.Max)
		}
	}
	line("acknowledged")
	for _, c := range v.Checks {
		line(c.Name)
	}
	for _, o := range v.Offenders {
		fmt.Fprintf(&b, "  ! %s\n", o)
	}
	if v.Reconciled {
		b.WriteString("reconciled: every acknowledged message was found\n")
	} else {
		fmt.Fprintf(&b, "NOT RECONCILED: %s\n", strings.Join(v.Faults, "; "))
	}
	return b.String()
}
