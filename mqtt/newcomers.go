package mqtt

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/transport"
)

// newcomers are the connections of a listener that have not come as far as MQTT: PROXY header, TLS handshake, HTTP request. Only so many of them
// are served at the same time, each in a place of its own; twice as many wait in the room before it, and all others in the kernel.
//
// Places are shared by address. A free one goes to whoever waits from the address that has the fewest. When none is free, an address that has more
// than another one gives up the newcomer that has kept us waiting longest, and when most of what an address has stalls for long, no more of it
// is let into a room that fills up. So who opens connections and says nothing, or too little, stands in the way of his own address only. A
// handshake that waits for us, because many compute, is never given up. Nor is one for another of its address: thousands that come from one, and
// whose machine is busy with it, are slow too.
type newcomers struct {
	places   int           // of them
	room     int           // places in the room
	patience time.Duration // a newcomer who has kept us waiting for longer may lose his place to another address
	most     time.Duration // who has for longer than this has stalled
	refused  func(*newcomer)

	mu      sync.Mutex
	held    int // places
	waiting int // in the room
	from    map[netip.Prefix]*origin
	order   uint64
	more    chan struct{} // has a token when there may be room again
	timer   *time.Timer   // of look; nil when nobody waits for a place
	closed  bool
}

// origin is an address, and its newcomers.
type origin struct {
	placed  map[*newcomer]struct{}
	queue   []*newcomer // in the room, by their coming
	crowded bool        // it has its share of the places, and most of them have stalled; as of the last look
}

// newcomer is one connection.
type newcomer struct {
	all    *newcomers
	remote net.Addr
	origin *origin // nil in the room before the header of the proxy has come
	key    netip.Prefix
	order  uint64
	turn   chan struct{} // closed when he has a place, or has lost it

	placed, gone, cut bool
	waits             bool          // we wait for the peer
	since             time.Time     // when that began
	waited            time.Duration // before that
	end               func()        // ends what is done with the connection; nil: nothing is
}

var errTooManyHandshakes = errors.New("too many connections are busy with what comes before MQTT")

const (
	patienceShare = 10          // of the handshake timeout
	patienceMost  = time.Second // two exchanges over a satellite take more, but only lose when there is no place left
	mostShare     = 2           // of the handshake timeout; see newcomers.most
	roomShare     = 2           // times as many as have a place, at 8 KiB each
)

func newNewcomers(places int, timeout time.Duration, refused func(*newcomer)) *newcomers {
	return &newcomers{
		places: places, room: roomShare * places, patience: min(timeout/patienceShare, patienceMost), most: timeout / mostShare, refused: refused,
		from: make(map[netip.Prefix]*origin), more: make(chan struct{}, 1),
	}
}

// enter lets a connection into the room, or refuses it. It returns nil, nil when there is no room at present; more tells when to try again.
func (all *newcomers) enter(remote net.Addr, known bool, addr netip.Addr) (*newcomer, error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	n := &newcomer{all: all, remote: remote, turn: make(chan struct{})}
	if known {
		if all.crowdedLocked(transport.Source(addr)) {
			return nil, errTooManyHandshakes
		}
	}
	if all.waiting >= all.room {
		all.watchLocked()
		return nil, nil
	}
	all.waiting++
	all.order++
	n.order = all.order
	if known {
		all.queueLocked(n, addr)
	}
	return n, nil
}

// crowdedLocked reports whether an address must not have more in the room.
func (all *newcomers) crowdedLocked(key netip.Prefix) bool {
	o := all.from[key]
	return o != nil && o.crowded && all.held >= all.places && all.waiting >= all.room/2
}

// name says where a newcomer comes from, once the header of a proxy has told.
func (n *newcomer) name(remote net.Addr, addr netip.Addr) error {
	all := n.all
	all.mu.Lock()
	defer all.mu.Unlock()
	n.remote = remote
	if all.crowdedLocked(transport.Source(addr)) {
		return errTooManyHandshakes
	}
	all.queueLocked(n, addr)
	return nil
}

func (all *newcomers) queueLocked(n *newcomer, addr netip.Addr) {
	n.key = transport.Source(addr)
	n.origin = all.from[n.key]
	if n.origin == nil {
		n.origin = &origin{placed: make(map[*newcomer]struct{})}
		all.from[n.key] = n.origin
	}
	n.origin.queue = append(n.origin.queue, n)
	all.placeLocked()
	all.watchLocked()
}

// placeLocked gives free places to those who wait.
func (all *newcomers) placeLocked() {
	for all.held < all.places {
		o := all.nextLocked()
		if o == nil {
			return
		}
		all.admitLocked(o)
	}
}

// nextLocked is the address that gets the next place: the one that has the fewest, and of those who has waited longest.
func (all *newcomers) nextLocked() (next *origin) {
	for _, o := range all.from {
		if len(o.queue) == 0 {
			continue
		}
		if next == nil || len(o.placed) < len(next.placed) ||
			len(o.placed) == len(next.placed) && o.queue[0].order < next.queue[0].order {
			next = o
		}
	}
	return next
}

// admitLocked gives a place to the first of an address.
func (all *newcomers) admitLocked(o *origin) {
	n := o.queue[0]
	o.queue = o.queue[1:]
	o.placed[n] = struct{}{}
	n.placed = true
	all.waiting--
	all.held++
	close(n.turn)
	all.tellMoreLocked()
}

func (all *newcomers) tellMoreLocked() {
	select {
	case all.more <- struct{}{}:
	default:
	}
}

// serve says that n waits for the peer from now on or for us, and how to end what is done for it. The handshake says so at each turn. It
// returns false when n has lost its place.
func (n *newcomer) serve(waits bool, end func()) bool {
	n.all.mu.Lock()
	defer n.all.mu.Unlock()
	n.end = end
	n.waitsLocked(waits)
	return !n.cut
}

// waitsFor is serve of a handshake that goes on.
func (n *newcomer) waitsFor(peer bool) {
	n.all.mu.Lock()
	defer n.all.mu.Unlock()
	n.waitsLocked(peer)
}

func (n *newcomer) waitsLocked(waits bool) {
	now := time.Now()
	if n.waits {
		n.waited += now.Sub(n.since)
	}
	n.waits, n.since = waits, now
}

// keptWaiting is for how long the peer has; zero while it is our turn, whoever was slow before.
func (n *newcomer) keptWaiting(now time.Time) time.Duration {
	if !n.waits {
		return 0
	}
	return n.waited + now.Sub(n.since)
}

// wasCut reports whether n has lost its place.
func (n *newcomer) wasCut() bool {
	n.all.mu.Lock()
	defer n.all.mu.Unlock()
	return n.cut
}

// leave gives back the place of n, or that in the room. It may be called again.
func (n *newcomer) leave() {
	n.all.mu.Lock()
	defer n.all.mu.Unlock()
	n.leaveLocked()
}

func (n *newcomer) leaveLocked() {
	if n.gone {
		return
	}
	n.gone, n.end = true, nil
	all, o := n.all, n.origin
	switch {
	case n.placed:
		delete(o.placed, n)
		all.held--
		all.placeLocked()
	case o != nil:
		o.remove(n)
		all.waiting--
	default:
		all.waiting--
	}
	if o != nil && len(o.placed)+len(o.queue) == 0 && all.from[n.key] == o {
		delete(all.from, n.key)
	}
	all.tellMoreLocked()
}

// of is how many places the address of n has.
func (all *newcomers) of(n *newcomer) int {
	all.mu.Lock()
	defer all.mu.Unlock()
	return len(n.origin.placed)
}

func (o *origin) remove(n *newcomer) {
	for i, other := range o.queue {
		if other == n {
			o.queue = append(o.queue[:i:i], o.queue[i+1:]...)
			return
		}
	}
}
