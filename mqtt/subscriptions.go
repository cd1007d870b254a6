package mqtt

import "iter"

// subscriptions are those of one session by filter as sent. Nearly all sessions have a few: a map for one costs 400 bytes,
// which is a twentieth of what an idle connection may take.
type subscriptions struct {
	few  []*subscription
	many map[string]*subscription
}

func (l *subscriptions) len() int { return len(l.few) + len(l.many) }

func (l *subscriptions) get(filter string) *subscription {
	if l.many != nil {
		return l.many[filter]
	}
	for _, s := range l.few {
		if s.filter == filter {
			return s
		}
	}
	return nil
}

// put adds s, in place of an earlier one for the same filter.
func (l *subscriptions) put(s *subscription) {
	for i := range l.few {
		if l.few[i].filter == s.filter {
			l.few[i] = s
			return
		}
	}
	if l.many == nil && len(l.few) < manySubscriptions {
		l.few = append(l.few, s)
		return
	}
	if l.many == nil {
		l.many = make(map[string]*subscription, 2*manySubscriptions)
		for _, f := range l.few {
			l.many[f.filter] = f
		}
		l.few = nil
	}
	l.many[s.filter] = s
}

func (l *subscriptions) remove(filter string) {
	delete(l.many, filter)
	for i := range l.few {
		if l.few[i].filter == filter {
			l.few = append(l.few[:i], l.few[i+1:]...)
			return
		}
	}
}

func (l *subscriptions) all() iter.Seq[*subscription] {
	return func(yield func(*subscription) bool) {
		for _, s := range l.few {
			if !yield(s) {
				return
			}
		}
		for _, s := range l.many {
			if !yield(s) {
				return
			}
		}
	}
}
