package segment

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// replaceMeta changes a value of bucket m as another version of the gateway would have written it.
func replaceMeta(t *testing.T, v []byte, key string, change func([]byte) []byte) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "craft.db")
	if err := os.WriteFile(path, v, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoFreelistSync: true, FreelistType: bolt.FreelistMapType})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		m := tx.Bucket(bucketMeta)
		return m.Put([]byte(key), change(append([]byte(nil), m.Get([]byte(key))...)))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func newerFormat(v []byte) []byte {
	le.PutUint16(v[len(formatMagic):], formatSealed+1)
	return appendCRC(v[:len(v)-4])
}

func newerState(v []byte) []byte {
	v[0] = stateVersion + 1
	return appendCRC(v[:len(v)-4])
}

// smallFile is a sealed segment of some dozen pages.
func smallFile(t testing.TB) []byte {
	s := mustCreate(t, Options{Codec: CodecZstd})
	for i := range uint64(6) {
		mustWrite(t, s, i+1, batch(rand.New(rand.NewPCG(i, 1)), 0, i*100, 2+int(i%2)*90))
	}
	if err := s.Seal(context.Background(), indexBody); err != nil {
		t.Fatal(err)
	}
	v, err := os.ReadFile(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	return v
}
