package fleet

import (
	"bytes"
	"errors"
	"hash/crc32"
	"strconv"
	"time"
)

// message is what a payload says about itself.
type message struct {
	device int
	seq    int
	at     time.Duration // when it was due, counted from the start of the run on the monotonic clock
}

// The payload is one JSON object. The numbers that the checkers need come first and in this order, so that they are
// read without a JSON decoder; the checksum comes last and covers every byte before it:
//
//	{"run":"k3v9","device":17,"seq":42,"at":81234567,  …readings…  "pad":"…","crc":"1a2b3c4d"}
const (
	minPayload = 96        // the numbers at their longest (67 bytes), and the checksum
	maxPayload = 1 << 20   // as large as a camera's still; brokers often take no more than this by default
	crcTail    = `"crc":"` // then 8 hex digits, quote, brace
	tailSize   = len(crcTail) + 10
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)

	errForeign = errors.New("not of this run")
	errCorrupt = errors.New("content differs from what was sent")
)

// appendPayload appends the payload of m, size bytes long, to b.
func appendPayload(b []byte, run string, m message, now time.Time, size int) []byte {
	start := len(b)
	b = append(b, `{"run":"`...)
	b = append(b, run...)
	b = append(b, `","device":`...)
	b = strconv.AppendInt(b, int64(m.device), 10)
	b = append(b, `,"seq":`...)
	b = strconv.AppendInt(b, int64(m.seq), 10)
	b = append(b, `,"at":`...)
	b = strconv.AppendInt(b, int64(m.at), 10)
	b = append(b, ',')
	room := func(n int) bool { return len(b)-start+n+tailSize <= size }
	if room(45) {
		b = append(b, `"time":"`...)
		b = now.UTC().AppendFormat(b, "2006-01-02T15:04:05.000000Z")
		b = append(b, `",`...)
	}
	// Readings wander slowly around a value of the device, as a room's temperature or a mains voltage does.
	wave := float64((m.seq*7+m.device*13)%200-100) / 100
	if room(24) {
		b = append(b, `"temperature":`...)
		b = strconv.AppendFloat(b, 21.5+float64(m.device%9)+wave, 'f', 2, 64)
		b = append(b, ',')
	}
	if room(20) {
		b = append(b, `"voltage":`...)
		b = strconv.AppendFloat(b, 230+4*wave, 'f', 1, 64)
		b = append(b, ',')
	}
	if room(18) {
		status := "ok"
		if m.seq%97 == 96 {
			status = "warn"
		}
		b = append(b, `"status":"`...)
		b = append(b, status...)
		b = append(b, `",`...)
	}
	const pad = `"pad":"",`
	if n := size - (len(b) - start) - tailSize - len(pad); n >= 0 {
		b = append(b, pad[:7]...)
		for i := range n {
			b = append(b, 'a'+byte((m.seq+i)%26))
		}
		b = append(b, pad[7:]...)
	}
	for len(b)-start+tailSize < size { // too little room for the pad's own name
		b = append(b, ' ')
	}
	return appendTail(b, crc32.Checksum(b[start:], castagnoli))
}

// appendTail appends the checksum and the end of the object.
func appendTail(b []byte, sum uint32) []byte {
	const hex = "0123456789abcdef"
	b = append(b, crcTail...)
	for shift := 28; shift >= 0; shift -= 4 {
		b = append(b, hex[sum>>shift&15])
	}
	return append(b, `"}`...)
}

// parsePayload reads what appendPayload wrote. errForeign is somebody else's message, errCorrupt one of ours that changed.
func parsePayload(p []byte, run string) (message, error) {
	var m message
	rest, ok := bytes.CutPrefix(p, []byte(`{"run":"`))
	if !ok {
		return m, errForeign
	}
	if len(rest) < len(run) || string(rest[:len(run)]) != run {
		return m, errForeign
	}
	rest = rest[len(run):]
	at := 0
	for _, f := range []struct {
		name string
		to   *int
	}{{`","device":`, &m.device}, {`,"seq":`, &m.seq}, {`,"at":`, &at}} {
		if rest, ok = bytes.CutPrefix(rest, []byte(f.name)); !ok {
			return m, errCorrupt
		}
		n := 0
		for n < len(rest) && rest[n] >= '0' && rest[n] <= '9' && n < 19 {
			*f.to = *f.to*10 + int(rest[n]-'0')
			n++
		}
		if n == 0 {
			return m, errCorrupt
		}
		rest = rest[n:]
	}
	m.at = time.Duration(at)
	if len(rest) < tailSize {
		return m, errCorrupt
	}
	body, tail := p[:len(p)-tailSize], p[len(p)-tailSize:]
	var want [tailSize]byte
	if !bytes.Equal(tail, appendTail(want[:0], crc32.Checksum(body, castagnoli))) {
		return m, errCorrupt
	}
	return m, nil
}
