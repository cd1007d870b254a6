package mapping

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/forebay-gateway/forebay/bridge/kafka"
)

// downward is the dialect of downlinks: the fields are those of a Kafka record.
var downward = dialect{field: parseDownField, path: true}

var downFields = map[string]source{
	"topic": downTopic, "partition": downPartition, "offset": downOffset, "timestamp_ms": downTimestamp, "key": downKey, "value": downValue,
	"gateway": downGateway,
}

const downNames = "topic, topic[N], key, header.NAME, json.PATH, value, partition, offset, timestamp_ms, gateway"

// parseDownField reads a field at the beginning of s and returns how many bytes it has.
func parseDownField(s string) (field, int, error) {
	end := 0
	for end < len(s) && (s[end] >= 'a' && s[end] <= 'z' || s[end] == '_') {
		end++
	}
	name, rest := s[:end], s[end:]
	switch {
	case name == "topic" && strings.HasPrefix(rest, "["):
		level, n, err := parseLevel(rest)
		return field{source: downLevel, level: level}, end + n, err
	case name == "header" && strings.HasPrefix(rest, "."):
		// The names of headers have dots and hyphens.
		n := 1
		for n < len(rest) && !strings.ContainsRune("[]{}|:\"' ", rune(rest[n])) {
			n++
		}
		if n == 1 {
			return field{}, 0, errors.New("header. without a name behind it")
		}
		return field{source: downHeader, name: rest[1:n]}, end + n, nil
	case name == "header" && strings.HasPrefix(rest, "["):
		steps, n, err := parsePath(rest)
		if err != nil {
			return field{}, 0, err
		}
		if len(steps) != 1 || steps[0].array {
			return field{}, 0, fmt.Errorf(`header%s: want the name of one header, such as header["a:b"]`, rest[:n])
		}
		return field{source: downHeader, name: steps[0].name}, end + n, nil
	case name == "json":
		steps, n, err := parsePath(rest)
		return field{source: fromJSON, path: steps}, end + n, err
	}
	if src, ok := downFields[name]; ok {
		return field{source: src}, end, nil
	}
	return field{}, 0, fmt.Errorf("unknown field %q; want one of %s", name+strings.TrimRight(rest[:min(len(rest), 16)], "}"), downNames)
}

// text is the field of the record in hand, false when the record has none.
func (s *DownScratch) text(f *field) (string, bool, error) {
	rec := s.rec
	switch f.source {
	case downTopic:
		return rec.Topic, true, nil
	case downLevel:
		part, ok := dotted(rec.Topic, f.level)
		return part, ok, nil
	case downPartition:
		return strconv.FormatInt(int64(rec.Partition), 10), true, nil
	case downOffset:
		return strconv.FormatInt(rec.Offset, 10), true, nil
	case downTimestamp:
		return strconv.FormatInt(rec.Timestamp.UnixMilli(), 10), true, nil
	case downKey:
		return view(rec.Key), rec.Key != nil, nil
	case downValue:
		return view(rec.Value), rec.Value != nil, nil
	case downGateway:
		return s.m.gateway, true, nil
	case downHeader:
		h := firstHeader(rec, f.name)
		if h == nil {
			return "", false, nil
		}
		return view(h.Value), true, nil
	case fromJSON:
		if err := s.parse(); err != nil {
			return "", false, err
		}
		n := s.doc.root().find(f.path)
		switch {
		case n == nil || n.kind == jsonNull:
			return "", false, nil
		case n.kind == jsonString:
			return n.str(), true, nil
		}
		return view(n.raw()), true, nil
	}
	panic(fmt.Sprintf("BUG: mapping: source %d", f.source))
}

// firstHeader is the first header of a name, nil when there is none.
func firstHeader(rec *kafka.Incoming, name string) *kafka.Header {
	for i := range rec.Headers {
		if rec.Headers[i].Name == name {
			return &rec.Headers[i]
		}
	}
	return nil
}

// dotted is part n of a Kafka topic, between dots.
func dotted(topic string, n int) (string, bool) {
	for ; n > 0; n-- {
		_, rest, more := strings.Cut(topic, ".")
		if !more {
			return "", false
		}
		topic = rest
	}
	part, _, _ := strings.Cut(topic, ".")
	return part, true
}

// composite reports whether a field is an object or an array of the value.
func (s *DownScratch) composite(f *field) bool {
	if f.source != fromJSON || s.parse() != nil {
		return false
	}
	n := s.doc.root().find(f.path)
	return n != nil && (n.kind == jsonArray || n.kind == jsonObject)
}
