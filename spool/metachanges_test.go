package spool

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/forebay-gateway/forebay/spool/crypt"
)

// However often a key changes in a round, in one group or in several, meta.db has what came last.
func TestMetaHasTheLastChangeOfEachKey(t *testing.T) {
	for name, key := range map[string]*crypt.DataKey{"plain": nil, "encrypted": testDataKey(t)} {
		t.Run(name, func(t *testing.T) {
			m, err := openMeta(filepath.Join(t.TempDir(), "meta.db"), false)
			if err != nil {
				t.Fatal(err)
			}
			defer m.close()
			m.key = key
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 0))
			spaces := []string{"a", "b", "c"}
			want := map[string]map[string]string{"a": {}, "b": {}, "c": {}}
			for round := range 20 {
				var groups [][]byte
				for range 1 + random.IntN(4) {
					var b []byte
					for range random.IntN(200) {
						space, key := spaces[random.IntN(3)], fmt.Sprintf("key-%d", random.IntN(300))
						if random.IntN(2) == 0 {
							b = appendChange(b, space, key, nil)
							delete(want[space], key)
							continue
						}
						value := fmt.Sprintf("%d of round %d", random.IntN(1000), round)
						b = appendChange(b, space, key, []byte(value))
						want[space][key] = value
					}
					groups = append(groups, b)
				}
				if err := m.update(func(tx *bolt.Tx) error { return m.applyChanges(tx, groups...) }); err != nil {
					t.Fatal(err)
				}
				for _, space := range spaces {
					got := map[string]string{}
					if err := m.load(space, func(key string, value []byte) error {
						got[key] = string(value)
						return nil
					}); err != nil {
						t.Fatal(err)
					}
					if !maps.Equal(got, want[space]) {
						t.Fatalf("round %d, space %s: got %d keys %v, want %d keys %v", round, space, len(got), got, len(want[space]), want[space])
					}
				}
			}
		})
	}
}

// BenchmarkMetaOfPassingKeys has a session of QoS 2 that gets many deliveries in a round: each identifier is put, put again and
// deleted.
func BenchmarkMetaOfPassingKeys(b *testing.B) {
	m, err := openMeta(filepath.Join(b.TempDir(), "meta.db"), false)
	if err != nil {
		b.Fatal(err)
	}
	defer m.close()
	const keys, alive = 30_000, 20_000 // identifiers stay until the checkpoint
	var groups [][]byte
	for i := range keys {
		var g []byte
		g = appendChange(g, "out", fmt.Sprintf("session-%05d", i), make([]byte, 20))
		g = appendChange(g, "out", fmt.Sprintf("session-%05d", i), make([]byte, 20))
		if i >= alive {
			g = appendChange(g, "out", fmt.Sprintf("session-%05d", i-alive), nil)
		}
		groups = append(groups, g)
	}
	for b.Loop() {
		if err := m.update(func(tx *bolt.Tx) error { return m.applyChanges(tx, groups...) }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/keys, "us/key")
}

func testDataKey(t *testing.T) *crypt.DataKey {
	t.Helper()
	keys, err := crypt.Load([]crypt.KeyFile{{ID: 1, Path: newKeyFile(t)}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	return keys.NewDataKey()
}
