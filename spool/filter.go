package spool

import (
	"fmt"
	"strings"
)

// CheckFilter reports what is wrong with an MQTT topic filter (MQTT 5, 4.7).
func CheckFilter(filter string) error {
	if filter == "" {
		return fmt.Errorf("topic filter is empty: %w", ErrInvalid)
	}
	if len(filter) > 65535 {
		return fmt.Errorf("topic filter of %d bytes is longer than 65535: %w", len(filter), ErrInvalid)
	}
	if strings.ContainsRune(filter, 0) {
		return fmt.Errorf("topic filter %q contains U+0000: %w", filter, ErrInvalid)
	}
	for rest, more := filter, true; more; {
		var level string
		level, rest, more = strings.Cut(rest, "/")
		switch {
		case strings.Contains(level, "#") && (level != "#" || more):
			return fmt.Errorf("topic filter %q: # must be a whole level and the last: %w", filter, ErrInvalid)
		case strings.Contains(level, "+") && level != "+":
			return fmt.Errorf("topic filter %q: + must be a whole level: %w", filter, ErrInvalid)
		}
	}
	return nil
}

// MatchFilter reports whether a topic name matches a topic filter. The filter has to be valid.
func MatchFilter(filter, topic string) bool {
	// MQTT 5, 4.7.2: a filter that starts with a wildcard does not match a topic that starts with $.
	if topic != "" && topic[0] == '$' && filter != "" && (filter[0] == '#' || filter[0] == '+') {
		return false
	}
	for {
		flevel, frest, fmore := strings.Cut(filter, "/")
		if flevel == "#" {
			return true
		}
		tlevel, trest, tmore := strings.Cut(topic, "/")
		if flevel != "+" && flevel != tlevel {
			return false
		}
		switch {
		case !fmore && !tmore:
			return true
		case !fmore:
			return false
		case !tmore:
			return frest == "#" // MQTT 5, 4.7.1.2: # includes the parent level
		}
		filter, topic = frest, trest
	}
}
