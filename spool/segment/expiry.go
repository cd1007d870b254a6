package segment

import (
	"math"
	"math/bits"
	"time"
)

// Expiry is a histogram of the records' expiry times, so that the live share of a segment is known without reading it.
// Bucket i holds the records that expire at most bound(i) after the segment was created; four buckets for each doubling,
// so a record counts as live for at most a quarter of its time too long, and never too short.
type Expiry struct {
	created int64
	latest  int64
	buckets []share // index is the bucket; trailing empty ones are left out
	never   share
}

type share struct{ records, bytes uint64 }

const maxExpiryBuckets = 4 * 40 // 2^40 s are 34 000 years

// expiryBucket is the bucket for a time of d after creation, in whole seconds rounded up: 0..4 s exactly, then by the
// three leading bits.
func expiryBucket(d time.Duration) int {
	if d <= 0 {
		return 0
	}
	s := (uint64(d) + uint64(time.Second) - 1) / uint64(time.Second)
	if s <= 4 {
		return int(s)
	}
	s-- // so that a power of two closes its bucket instead of opening the next
	n := bits.Len64(s) - 1
	return min(5+4*(n-2)+int(s>>(n-2)&3), maxExpiryBuckets-1)
}

// expiryBound is the latest time in bucket i, in seconds after creation.
func expiryBound(i int) int64 {
	if i <= 4 {
		return int64(i)
	}
	n := (i-5)/4 + 2
	return int64(1)<<n + int64((i-5)%4+1)<<(n-2)
}

func (e *Expiry) add(at int64, records, bytes uint64) {
	if records == 0 {
		return
	}
	if at == 0 {
		e.never.records += records
		e.never.bytes += bytes
		return
	}
	e.latest = max(e.latest, at)
	i := expiryBucket(time.Duration(at - e.created))
	for len(e.buckets) <= i {
		e.buckets = append(e.buckets, share{})
	}
	e.buckets[i].records += records
	e.buckets[i].bytes += bytes
}

// addBatch counts the records of b, each with an equal part of the raw body.
func (e *Expiry) addBatch(b *Batch) {
	if b.Count == 0 {
		return
	}
	each, rest := uint64(len(b.Body))/uint64(b.Count), uint64(len(b.Body))%uint64(b.Count)
	if b.Expiries != nil {
		for _, at := range b.Expiries {
			e.add(at, 1, each+rest)
			rest = 0
		}
		return
	}
	expiring := uint64(b.Count - b.Never)
	e.add(0, uint64(b.Never), uint64(b.Never)*each)
	e.add(b.MaxExpiry, expiring, expiring*each+rest)
}

// Live estimates how many records, and bytes of raw body, are not expired at now. It never says fewer than there are.
func (e Expiry) Live(now int64) (records, rawBytes uint64) {
	records, rawBytes = e.never.records, e.never.bytes
	for i, b := range e.buckets {
		bound := expiryBound(i)
		if i == maxExpiryBuckets-1 || bound > (math.MaxInt64-e.created)/int64(time.Second) || e.created+bound*int64(time.Second) > now {
			records += b.records
			rawBytes += b.bytes
		}
	}
	return records, rawBytes
}

// Latest is the latest expiry of a record; never is true when a record has none.
func (e Expiry) Latest() (at int64, never bool) { return e.latest, e.never.records > 0 }

func (e Expiry) clone() Expiry {
	e.buckets = append([]share(nil), e.buckets...)
	return e
}
