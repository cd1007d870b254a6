package auth

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/argon2"
	"golang.org/x/sync/semaphore"
)

// HashParams are the costs of argon2id.
type HashParams struct {
	Memory  uint32 // KiB
	Time    uint32 // passes
	Threads uint8
}

// DefaultHashParams are OWASP's first choice for argon2id: 19 MiB, two passes, one lane.
var DefaultHashParams = HashParams{Memory: 19 << 10, Time: 2, Threads: 1}

// What is taken from a file. The top keeps one line from taking the machine.
const (
	maxHashMemory  = 1 << 20 // KiB
	maxHashTime    = 64
	maxHashThreads = 16
)

// Validate says what is wrong with the costs.
func (p HashParams) Validate() error {
	switch {
	case p.Time < 1 || p.Time > maxHashTime:
		return fmt.Errorf("t=%d is not between 1 and %d", p.Time, maxHashTime)
	case p.Threads < 1 || p.Threads > maxHashThreads:
		return fmt.Errorf("p=%d is not between 1 and %d", p.Threads, maxHashThreads)
	case p.Memory < 8*uint32(p.Threads) || p.Memory > maxHashMemory:
		return fmt.Errorf("m=%d is not between %d and %d KiB", p.Memory, 8*uint32(p.Threads), maxHashMemory)
	}
	return nil
}

// hash is an argon2id hash as it stands in a file:
//
//	$argon2id$v=19$m=19456,t=2,p=1$SALT$HASH
//
// with the salt and the hash in base64 without padding, as the argon2 command and most libraries write it.
type hash struct {
	HashParams
	salt, sum []byte
}

func newHash(password []byte, p HashParams) *hash {
	h := &hash{HashParams: p, salt: make([]byte, 16)}
	_, _ = rand.Read(h.salt) // never fails
	h.sum = argon2.IDKey(password, h.salt, p.Time, p.Memory, p.Threads, 32)
	return h
}

// String writes the hash as parseHash reads it.
func (h *hash) String() string {
	b64 := base64.RawStdEncoding
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, h.Memory, h.Time, h.Threads,
		b64.EncodeToString(h.salt), b64.EncodeToString(h.sum))
}

func parseHash(s string) (*hash, error) {
	parts := strings.Split(s, "$")
	switch {
	case len(parts) != 6 || parts[0] != "" || parts[1] != "argon2id":
		return nil, errors.New("hash is not $argon2id$v=19$m=M,t=T,p=P$salt$hash: forebay passwd writes it")
	case parts[2] != "v=19":
		return nil, fmt.Errorf("hash: version %q is not supported, v=19 is", parts[2])
	}
	h := &hash{}
	costs := strings.Split(parts[3], ",")
	if len(costs) != 3 {
		return nil, fmt.Errorf("hash: %q is not m=M,t=T,p=P", parts[3])
	}
	for i, key := range []string{"m=", "t=", "p="} {
		text, ok := strings.CutPrefix(costs[i], key)
		v, err := strconv.ParseUint(text, 10, 32)
		if !ok || err != nil || key == "p=" && v > maxHashThreads {
			return nil, fmt.Errorf("hash: %q is not m=M,t=T,p=P", parts[3])
		}
		switch key {
		case "m=":
			h.Memory = uint32(v)
		case "t=":
			h.Time = uint32(v)
		default:
			h.Threads = uint8(v)
		}
	}
	if err := h.Validate(); err != nil {
		return nil, fmt.Errorf("hash: %w", err)
	}
	var err error
	if h.salt, err = base64.RawStdEncoding.DecodeString(parts[4]); err != nil || len(h.salt) < 8 || len(h.salt) > 64 {
		return nil, errors.New("hash: the salt is not 8 to 64 bytes in base64 without padding")
	}
	if h.sum, err = base64.RawStdEncoding.DecodeString(parts[5]); err != nil || len(h.sum) < 16 || len(h.sum) > 64 {
		return nil, errors.New("hash: the hash is not 16 to 64 bytes in base64 without padding")
	}
	return h, nil
}

// gate lets as many hashes run as there is memory and room for; others wait in a queue with a deadline.
type gate struct {
	memory *semaphore.Weighted // KiB
	slots  *semaphore.Weighted
	queue  *semaphore.Weighted
	wait   time.Duration
	hashes atomic.Uint64
	busy   atomic.Uint64 // refused

	key func(password, salt []byte, time, memory uint32, threads uint8, length uint32) []byte // argon2.IDKey; tests count
}

// newGate makes a gate of so much memory in KiB. parallel 0 is half of the processors: those who are in already go on being
// served while others come in.
func newGate(memory uint32, parallel, queue int, wait time.Duration) *gate {
	if parallel == 0 {
		parallel = max(1, runtime.GOMAXPROCS(0)/2)
	}
	return &gate{
		memory: semaphore.NewWeighted(int64(memory)),
		slots:  semaphore.NewWeighted(int64(parallel)),
		queue:  semaphore.NewWeighted(int64(queue + parallel)),
		wait:   wait,
		key:    argon2.IDKey,
	}
}

// verify reports whether password is the one of h. It returns ErrBusy when there was no room in time.
func (g *gate) verify(ctx context.Context, h *hash, password []byte) (bool, error) {
	if !g.queue.TryAcquire(1) {
		g.busy.Add(1)
		return false, ErrBusy
	}
	defer g.queue.Release(1)
	ctx, cancel := context.WithTimeout(ctx, g.wait)
	defer cancel()
	if err := g.slots.Acquire(ctx, 1); err != nil {
		g.busy.Add(1)
		return false, ErrBusy
	}
	defer g.slots.Release(1)
	if err := g.memory.Acquire(ctx, int64(h.Memory)); err != nil {
		g.busy.Add(1)
		return false, ErrBusy
	}
	defer g.memory.Release(int64(h.Memory))
	g.hashes.Add(1)
	sum := g.key(password, h.salt, h.Time, h.Memory, h.Threads, uint32(len(h.sum)))
	return subtle.ConstantTimeCompare(sum, h.sum) == 1, nil
}
