package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// Changes are the keys whose values differ between two configurations, such as spool.max_size, in order. An item of a list that has a name
// stands for it: bridge.routes[telemetry].topic, or bridge.routes[telemetry] when only one of the two has it.
func Changes(a, b Config) []string {
	return changes(nil, "", plain(reflect.ValueOf(a.Resolved())), plain(reflect.ValueOf(b.Resolved())))
}

func changes(out []string, path string, a, b any) []string {
	am, aIs := a.(map[string]any)
	bm, bIs := b.(map[string]any)
	if aIs && bIs {
		keys := maps.Clone(am)
		maps.Copy(keys, bm)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			out = changes(out, join(path, key), am[key], bm[key])
		}
		return out
	}
	an, aIs := byName(a)
	bn, bIs := byName(b)
	if aIs && bIs {
		names := maps.Clone(an)
		maps.Copy(names, bn)
		before := len(out)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			out = changes(out, fmt.Sprintf("%s[%s]", path, name), an[name], bn[name])
		}
		if len(out) == before && !reflect.DeepEqual(a, b) { // another order
			out = append(out, path)
		}
		return out
	}
	if !reflect.DeepEqual(a, b) {
		out = append(out, path)
	}
	return out
}

// byName are the items of a list, each of which has a name of its own, false when that is not so.
func byName(list any) (map[string]any, bool) {
	items, ok := list.([]any)
	if !ok {
		return nil, list == nil
	}
	out := make(map[string]any)
	for _, item := range items {
		m, _ := item.(map[string]any)
		name, _ := m["name"].(string)
		if name == "" || out[name] != nil {
			return nil, false
		}
		out[name] = item
	}
	return out, true
}
