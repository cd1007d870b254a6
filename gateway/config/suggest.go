package config

import (
	"slices"
	"strings"
)

// Nearest is the word of words that somebody who wrote word most likely meant, or "".
func Nearest(word string, words []string) string {
	best, bestDistance := "", 1+max(1, len(word)/3) // a third of the letters wrong is another word
	for _, w := range words {
		if squeeze(w) == squeeze(word) { // maxSize, max-size
			return w
		}
		if d := distance(word, w); d < bestDistance {
			best, bestDistance = w, d
		}
	}
	return best
}

// squeeze drops what people write differently in the same name.
func squeeze(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r == '.' || r == ' ' {
			return -1
		}
		return r
	}, strings.ToLower(s))
}

// distance counts the letters that must be put in, taken out, exchanged or swapped with their neighbour to turn a into b
// (optimal string alignment).
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

// unknownKey starts the problem of a fault about a key that does not exist.
const unknownKey = "unknown key"

// unknown is the problem text for name, which is no key below k: a near name, the place where such a key exists, or what is
// allowed here.
func unknown(k *Key, name string) string {
	if near := Nearest(name, k.names()); near != "" {
		return unknownKey + " (did you mean " + near + "?)"
	}
	if places := elsewhere(name); len(places) == 1 {
		return unknownKey + " (did you mean " + places[0] + "?)"
	}
	if near := inside(k, name); near != "" {
		return unknownKey + " (did you mean " + near + "?)"
	}
	names := k.names()
	slices.Sort(names)
	return unknownKey + ": allowed are " + strings.Join(names, ", ")
}

// inside is the key one level further down that somebody meant who wrote segment_size for segment.max_size, or "".
func inside(k *Key, name string) string {
	paths := make(map[string]string) // by what Nearest compares
	var words []string
	for _, section := range k.Keys {
		if section.Kind != Section {
			continue
		}
		for _, child := range section.Keys {
			word := squeeze(section.Name + child.Name)
			paths[word] = section.Name + "." + child.Name
			words = append(words, word)
		}
	}
	return paths[Nearest(squeeze(name), words)]
}

// elsewhere are the paths of all keys called name, at most two: with more of them a hint is a guess.
func elsewhere(name string) (paths []string) {
	Keys().Walk(func(k *Key) {
		if k.Name == name && len(paths) < 2 {
			paths = append(paths, k.Path)
		}
	})
	return paths
}
