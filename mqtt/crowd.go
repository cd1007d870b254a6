package mqtt

import (
	"cmp"
	"slices"
	"time"
)

const (
	lookEvery = 100 * time.Millisecond // while somebody waits for a place
	mostCuts  = 256                    // in one look
)

// watchLocked looks at the newcomers from time to time, as long as somebody waits for a place.
func (all *newcomers) watchLocked() {
	if all.timer != nil || all.closed || all.waiting == 0 || all.held < all.places {
		return
	}
	all.timer = time.AfterFunc(lookEvery, all.look)
}

// close ends the looks. Who is there is ended by the listener.
func (all *newcomers) close() {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.closed = true
	if all.timer != nil {
		all.timer.Stop()
	}
}

// look takes places away from who has kept us waiting, for others.
func (all *newcomers) look() {
	all.mu.Lock()
	all.timer = nil
	var cut []*newcomer
	if !all.closed && all.held >= all.places {
		cut = all.makePlacesLocked(all.slowLocked(time.Now()))
		cut = append(cut, all.makeRoomLocked()...)
	}
	all.watchLocked()
	all.mu.Unlock()
	for _, n := range cut {
		all.refused(n)
	}
}

// slowOf are the newcomers of an address who have kept us waiting, those for longest last.
type slowOf struct {
	origin *origin
	all    []*newcomer
}

// slowLocked finds out who has run out of our patience, and which addresses are crowded with them.
func (all *newcomers) slowLocked(now time.Time) (list []*slowOf) {
	for _, o := range all.from {
		s := &slowOf{origin: o}
		stalled := 0
		for n := range o.placed {
			kept := n.keptWaiting(now)
			if kept >= all.patience {
				s.all = append(s.all, n)
			}
			if kept >= all.most {
				stalled++
			}
		}
		o.crowded = 2*stalled >= len(o.placed) && len(o.placed) > 1 && len(o.placed)*len(all.from) >= all.places
		if len(s.all) == 0 {
			continue
		}
		slices.SortFunc(s.all, func(a, b *newcomer) int { return cmp.Compare(a.keptWaiting(now), b.keptWaiting(now)) })
		list = append(list, s)
	}
	return list
}

// makePlacesLocked gives the places of the slow to who waits.
func (all *newcomers) makePlacesLocked(slow []*slowOf) (cut []*newcomer) {
	for len(cut) < mostCuts {
		next := all.nextLocked()
		if next == nil {
			break
		}
		var worst *slowOf
		for _, s := range slow {
			if len(s.all) > 0 && len(s.origin.placed) > len(next.placed) && (worst == nil || len(s.origin.placed) > len(worst.origin.placed)) {
				worst = s
			}
		}
		if worst == nil {
			break
		}
		n := worst.all[len(worst.all)-1]
		worst.all = worst.all[:len(worst.all)-1]
		n.cutLocked()
		cut = append(cut, n)
	}
	return cut
}

// makeRoomLocked sends those away who wait from addresses that are crowded, when the room is full of them: behind it others wait in the
// kernel, whom we cannot see.
func (all *newcomers) makeRoomLocked() (cut []*newcomer) {
	for _, o := range all.from {
		for o.crowded && all.waiting > all.room/2 && len(o.queue) > 0 {
			n := o.queue[len(o.queue)-1]
			n.cutLocked()
			cut = append(cut, n)
		}
	}
	return cut
}

// cutLocked takes the place of n, which goes to the next.
func (n *newcomer) cutLocked() {
	n.cut = true
	end := n.end
	if !n.placed {
		close(n.turn)
	}
	n.leaveLocked()
	if end != nil {
		end()
	}
}
