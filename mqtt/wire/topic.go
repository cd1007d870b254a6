package wire

import (
	"bytes"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// validString reports whether b may be a UTF-8 Encoded String: well-formed, without surrogates (which utf8 refuses, MQTT 5,
// 1.5.4-1) and without U+0000 (1.5.4-2). Other control characters and non-characters are discouraged, not forbidden.
func validString(b []byte) bool { return bytes.IndexByte(b, 0) < 0 && utf8.Valid(b) }

// text is b as a string that shares its memory. Bodies of packets are never written again.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// checkTopic refuses what is not a topic name. The standard names no reason code for it; its reason code 0x90 is for names
// that are "not malformed", so a malformed one is 0x81.
func checkTopic(b []byte) *Error {
	if len(b) == 0 {
		return malformed("topic name is empty") // MQTT 5, 4.7.3-1
	}
	var high byte
	for _, c := range b {
		high |= c
		switch c {
		case 0: // MQTT 5, 4.7.3-2
			return malformed("topic name holds U+0000")
		case '+', '#': // MQTT 5, 3.3.2-2
			return malformed("topic name holds a wildcard")
		}
	}
	if high >= utf8.RuneSelf && !utf8.Valid(b) {
		return malformed("topic name is not UTF-8")
	}
	return nil
}

const sharePrefix = "$share/"

// parseFilter splits a topic filter into share name and filter and refuses bad ones. f is known to be a valid string.
//
// A shared subscription is a thing of MQTT 5. For 3.1.1 the same form is accepted, as other servers do, because nobody
// publishes to a topic that starts with $share.
func parseFilter(f string) (share, filter string, err *Error) {
	filter = f
	if strings.HasPrefix(f, sharePrefix) {
		var ok bool
		share, filter, ok = strings.Cut(f[len(sharePrefix):], "/")
		if !ok || share == "" { // MQTT 5, 4.8.2-1
			return "", "", malformed("shared subscription without a share name or a filter")
		}
		if strings.ContainsAny(share, "+#") { // MQTT 5, 4.8.2-2
			return "", "", malformed("share name holds a wildcard")
		}
	}
	if filter == "" { // MQTT 5, 4.7.3-1
		return "", "", malformed("topic filter is empty")
	}
	for i := range len(filter) {
		if c := filter[i]; c != '+' && c != '#' {
			continue
		}
		if i > 0 && filter[i-1] != '/' { // MQTT 5, 4.7.1-1 and 4.7.1-2
			return "", "", malformed("wildcard does not fill its level")
		}
		if i+1 == len(filter) {
			continue
		}
		if filter[i] == '#' { // MQTT 5, 4.7.1-1
			return "", "", malformed("# is not the last level")
		}
		if filter[i+1] != '/' {
			return "", "", malformed("wildcard does not fill its level")
		}
	}
	return share, filter, nil
}
