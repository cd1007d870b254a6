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

	byAddress map[netip.Addr][]int // of bans with a whole address
	byClient  map[string][]int     // of other bans with a client ID that is no glob
	byUser    map[string][]int     // of other bans with a user that is no glob
	rest      []int
}

func newBanTable(list []Ban) *banTable {
	t := &banTable{list: list, byAddress: map[netip.Addr][]int{}, byClient: map[string][]int{}, byUser: map[string][]int{}}
	glob := func(s string) bool { return s == "" || strings.ContainsAny(s, `*?\\`) }
	for i, b := range list {
		switch {
		case b.Address.IsValid() && b.Address.IsSingleIP():
			t.byAddress[b.Address.Addr()] = append(t.byAddress[b.Address.Addr()], i)
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
	return slices.ContainsFunc(t.byAddress[remote.Unmap().WithZone("")], hit) || slices.ContainsFunc(t.byClient[client], hit) ||
		slices.ContainsFunc(t.byUser[user], hit) || slices.ContainsFunc(t.rest, hit)
}

// parseBanTable is ParseBans for a source.
func parseBanTable(file string, data []byte) (*banTable, error) {
	list, err := ParseBans(file, data)
	if err != nil {
		return nil, err
	}
	return newBanTable(list), nil
}
