package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
)

// A payload is JSON as a device sends it, no two alike, and says at a fixed place whose message it is and which:
//
//	{"from":"002a","seq":"00000001f0c4","temperature":21.52,…}
const (
	payloadHead = `{"from":"0000","seq":"000000000000",`
	fromAt      = len(`{"from":"`)
	seqAt       = len(`{"from":"0000","seq":"`)
)

// telemetry are payloads of the given size, to be numbered.
func telemetry(size int) ([][]byte, error) {
	if size < len(payloadHead)+len(`"pad":""}`) {
		return nil, fmt.Errorf("a payload of %d bytes cannot hold its number", size)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	all := make([][]byte, 4096)
	for i := range all {
		b := []byte(payloadHead)
		for len(b)+80 < size {
			b = fmt.Appendf(b, `"temperature":%.2f,"pressure":%.3f,"rpm":%d,"battery":%.2f,`,
				20+10*rnd.NormFloat64(), 1013+5*rnd.NormFloat64(), 1400+rnd.IntN(100), rnd.Float64())
		}
		b = append(b, `"pad":"`...)
		for len(b) < size-2 {
			b = append(b, "0123456789abcdef"[rnd.IntN(16)])
		}
		all[i] = append(b, `"}`...)
	}
	return all, nil
}

const digits = "0123456789abcdef"

// number writes whose message a payload is, and which.
func number(payload []byte, from int, seq uint64) {
	for i := 3; i >= 0; i, from = i-1, from>>4 {
		payload[fromAt+i] = digits[from&15]
	}
	for i := 11; i >= 0; i, seq = i-1, seq>>4 {
		payload[seqAt+i] = digits[seq&15]
	}
}

var errForeign = errors.New("a delivery is none of this run's messages")

func numberOf(payload []byte) (from int, seq uint64, err error) {
	if len(payload) < len(payloadHead) || string(payload[:fromAt]) != payloadHead[:fromAt] {
		return 0, 0, errForeign
	}
	var b [8]byte
	if _, err := hex.Decode(b[:2], payload[fromAt:fromAt+4]); err != nil {
		return 0, 0, errForeign
	}
	if _, err := hex.Decode(b[2:], payload[seqAt:seqAt+12]); err != nil {
		return 0, 0, errForeign
	}
	for _, c := range b[2:] {
		seq = seq<<8 | uint64(c)
	}
	return int(b[0])<<8 | int(b[1]), seq, nil
}
