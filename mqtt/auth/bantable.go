package auth

import (
	"net/netip"
	"slices"
	"strings"
	"time"
)

// banTable finds the bans that may be about a client without walking over all of them: there may be thousands, and everybody who
// connects is looked up.
type banTable struct {
	list []Ban

	byAddress map[netip.Prefix][]int // of bans with an address
	lengths   []int                  // of its prefixes, IPv4 as negative numbers: a look-up tries each
	byClient  map[string][]int       // of other bans with a client ID that is no glob
	byUser    map[string][]int       // of other bans with a user that is no glob
	rest      []int
}

func newBanTable(list []Ban) *banTable {
	t := &banTable{list: list, byAddress: map[netip.Prefix][]int{}, byClient: map[string][]int{}, byUser: map[string][]int{}}
	glob := func(s string) bool { return s == "" || strings.ContainsAny(s, `*?\\`) }
	for i, b := range list {
		switch {
		case b.Address.IsValid():
			key := b.Address.Masked()
			t.byAddress[key] = append(t.byAddress[key], i)
			if n := lengthOf(key.Addr(), key.Bits()); !slices.Contains(t.lengths, n) {
				t.lengths = append(t.lengths, n)
			}
		case !glob(b.Client):
			t.byClient[b.Client] = append(t.byClient[b.Client], i)
		case !glob(b.User):
			t.byUser[b.User] = append(t.byUser[b.User], i)
		default:
			t.rest = append(t.rest, i)
		}
	}
	return t
}

// any reports whether a ban is in force that is about the client and that ok takes.
func (t *banTable) any(now time.Time, client, user string, remote netip.Addr, ok func(Ban) bool) bool {
	if t == nil {
		return false
	}
	hit := func(i int) bool {
		b := t.list[i]
		return !b.over(now) && b.matches(client, user, remote) && ok(b)
	}
	return slices.ContainsFunc(t.lengths, func(n int) bool { return slices.ContainsFunc(t.byAddress[prefixOf(remote, n)], hit) }) ||
		slices.ContainsFunc(t.byClient[client], hit) || slices.ContainsFunc(t.byUser[user], hit) || slices.ContainsFunc(t.rest, hit)
}

// lengthOf is how lengths are kept apart by family.
func lengthOf(a netip.Addr, bits int) int {
	if a.Is4() {
		return -1 - bits
	}
	return bits
}

// prefixOf is the prefix of an address with such a length; one that is not valid when it is of the other family.
func prefixOf(a netip.Addr, length int) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := length
	if a.Is4() {
		bits = -1 - length
	}
	p, _ := a.Prefix(bits) // an error when it is negative, or longer than the address
	return p
}

// parseBanTable is ParseBans for a source.
func parseBanTable(file string, data []byte) (*banTable, error) {
	list, err := ParseBans(file, data)
	if err != nil {
		return nil, err
	}
	return newBanTable(list), nil
}
