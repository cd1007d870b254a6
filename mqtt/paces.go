package mqtt

import "sync"

const pacesKept = 10_000 // paces of clients without a session, 150 bytes each; beyond them, one that is forgotten begins anew

// paces keeps what clients have used of their rates while they have no session that could: otherwise whoever ends his own, or begins a
// clean one, would have a new burst each time.
type paces struct {
	mu   sync.Mutex
	kept map[string]*pace // by client ID
}

// put keeps a pace that has not all of its burst; nil is none.
func (k *paces) put(clientID string, p *pace) {
	now := monotonic()
	if p == nil || p.whole(now) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept == nil {
		k.kept = map[string]*pace{}
	}
	if len(k.kept) >= pacesKept {
		for id, p := range k.kept {
			if p.whole(now) {
				delete(k.kept, id)
			}
		}
		for id := range k.kept {
			if len(k.kept) <= pacesKept*3/4 {
				break
			}
			delete(k.kept, id)
		}
	}
	k.kept[clientID] = p
}

// take returns the pace of a client, nil without one.
func (k *paces) take(clientID string) *pace {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.kept[clientID]
	delete(k.kept, clientID)
	return p
}
