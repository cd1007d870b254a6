package replay

import (
	"cmp"
	"slices"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// Preview is what a dry run would send.
type Preview struct {
	Destinations []Destination `json:"destinations"` // the most first; the last has the rest when there are many
	Samples      []Sample      `json:"samples"`      // the first of each destination
}

// Destination is a topic with what it would get.
type Destination struct {
	Topic   string `json:"topic"`
	Records uint64 `json:"records"`
	Bytes   uint64 `json:"bytes"`
}

// Sample is a record as it would be sent.
type Sample struct {
	Partition  int          `json:"partition"`
	Offset     spool.Offset `json:"offset"`
	ReceivedAt time.Time    `json:"received_at"`
	MQTTTopic  string       `json:"mqtt_topic"`
	ClientID   string       `json:"client_id"`
	Topic      string       `json:"topic"` // where to
	Key        string       `json:"key,omitempty"`
	Headers    []string     `json:"headers,omitempty"` // name=value
	Bytes      int          `json:"bytes"`             // of the value
}

const (
	maxDestinations = 50 // of a preview
	maxSamples      = 10
)

// Previews collects a preview. The zero one is ready; it is not safe for concurrent use.
type Previews struct {
	by      map[string]*Destination
	rest    Destination
	samples []Sample
}

// Add counts a record; sample is called when it is to be shown.
func (p *Previews) Add(topic string, bytes int, sample func() Sample) {
	if p.by == nil {
		p.by = make(map[string]*Destination)
	}
	d := p.by[topic]
	if d == nil && len(p.by) >= maxDestinations {
		p.rest.Topic = "(others)"
		d = &p.rest
	}
	if d == nil {
		d = &Destination{Topic: topic}
		p.by[topic] = d
		if len(p.samples) < maxSamples {
			p.samples = append(p.samples, sample())
		}
	}
	d.Records++
	d.Bytes += uint64(bytes)
}

// Preview is what was collected.
func (p *Previews) Preview() Preview {
	out := Preview{Destinations: []Destination{}, Samples: append([]Sample{}, p.samples...)}
	for _, d := range p.by {
		out.Destinations = append(out.Destinations, *d)
	}
	slices.SortFunc(out.Destinations, func(a, b Destination) int {
		return cmp.Or(cmp.Compare(b.Records, a.Records), cmp.Compare(a.Topic, b.Topic))
	})
	if p.rest.Records > 0 {
		out.Destinations = append(out.Destinations, p.rest)
	}
	return out
}
