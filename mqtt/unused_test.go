package mqtt

import "testing"

func TestIndexTellsWhenItIsUsed(t *testing.T) {
	used := func(x *index) bool {
		select {
		case <-x.inUse():
			return true
		default:
			return false
		}
	}
	sub := func(filter string) *subscription {
		return &subscription{sess: &session{}, filter: filter, topic: filter}
	}

	var x index
	a, b, g := sub("a/b"), sub("#"), &group{topic: "a/+"}
	x.add(a)
	if !used(&x) {
		t.Error("first look at an index with a subscription: unused")
	}
	x.remove(a)
	if used(&x) {
		t.Error("used, and the only subscription has gone")
	}
	waits := x.inUse()
	x.addGroup(g)
	select {
	case <-waits:
	default:
		t.Error("who waits is not told of a share group")
	}
	x.add(b)
	x.removeGroup(g)
	if !used(&x) {
		t.Error("unused, and a subscription is left")
	}
	x.remove(b)
	if used(&x) {
		t.Error("used, and nothing is left")
	}
	x.add(a)
	if !used(&x) {
		t.Error("unused, with a subscription again")
	}
}
