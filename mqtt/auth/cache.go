package auth

import (
	"container/list"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"time"
)

// digest is a key of a cache. Passwords are in it only under a key that this process made and nobody else has.
type digest [sha256.Size]byte

var digestKey = func() []byte {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return b
}()

// digestOf keeps its parts apart: "a","bc" is not "ab","c".
func digestOf(parts ...string) (d digest) {
	h := hmac.New(sha256.New, digestKey)
	for _, p := range parts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	h.Sum(d[:0])
	return d
}

// cache is a bounded table; the entry that was not used for longest makes room.
type cache[K comparable, V any] struct {
	limit int

	mu    sync.Mutex
	items map[K]*list.Element
	order list.List // of *cached[K, V], the latest used in front
}

type cached[K comparable, V any] struct {
	key   K
	value V
	at    time.Time
}

func newCache[K comparable, V any](limit int) *cache[K, V] {
	return &cache[K, V]{limit: limit, items: map[K]*list.Element{}}
}

// get returns an entry and when it was put.
func (c *cache[K, V]) get(key K) (v V, at time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.items[key]
	if e == nil {
		return v, at, false
	}
	c.order.MoveToFront(e)
	item := e.Value.(*cached[K, V])
	return item.value, item.at, true
}

func (c *cache[K, V]) put(key K, v V, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(key, v, at)
}

func (c *cache[K, V]) putLocked(key K, v V, at time.Time) {
	if c.limit <= 0 {
		return
	}
	if e := c.items[key]; e != nil {
		*e.Value.(*cached[K, V]) = cached[K, V]{key, v, at}
		c.order.MoveToFront(e)
		return
	}
	if c.order.Len() >= c.limit {
		oldest := c.order.Back()
		delete(c.items, c.order.Remove(oldest).(*cached[K, V]).key)
	}
	c.items[key] = c.order.PushFront(&cached[K, V]{key, v, at})
}

// update changes an entry, or the zero value, in one step.
func (c *cache[K, V]) update(key K, at time.Time, fn func(V) V) V {
	c.mu.Lock()
	defer c.mu.Unlock()
	var v V
	if e := c.items[key]; e != nil {
		v = e.Value.(*cached[K, V]).value
	}
	v = fn(v)
	c.putLocked(key, v, at)
	return v
}

func (c *cache[K, V]) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.items)
}
