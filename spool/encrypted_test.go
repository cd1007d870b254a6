package spool

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/forebay-gateway/forebay/spool/crypt"
)

func newKeyFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, crypt.NewKey(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestEncryptedSpoolPassesTheSameTests runs those that look at what a spool does, not at what its files look like.
func TestEncryptedSpoolPassesTheSameTests(t *testing.T) {
	t.Setenv(keyEnv, newKeyFile(t))
	for name, test := range map[string]func(*testing.T){
		"power cut":         TestPowerCutKeepsWhatWasAcknowledged,
		"kill":              TestKilledSpoolKeepsWhatItAcknowledged,
		"failed syncs":      TestFailedSyncsAcknowledgeNothing,
		"one failed sync":   TestOneFailedSyncIsSurvived,
		"model":             TestSpoolEqualsModel,
		"restart":           TestRecordsSurviveRestart,
		"state":             TestChangesAreLoadedAfterRestart,
		"cursor":            TestCursorSurvivesRestart,
		"missing segment":   TestMissingSegmentIsAGap,
		"truncated segment": TestTruncatedSegmentIsSetAside,
		"damaged active":    TestDamagedActiveSegmentComesBackFromTheJournal,
		"lost offsets":      TestLostActiveSegmentAndJournalNeverGiveAnOffsetTwice,
		"damaged meta":      TestDamagedMetaIsRebuilt,
		"rewrite":           TestSegmentOfFewLiveRecordsIsRewritten,
		"expired":           TestExpiredRecordsNeverLeaveTheSpool,
		"index":             TestMatchedReaderSkipsByTheIndex,
		"seek":              TestSeekTimeFindsTheFirstRecord,
		"groups":            TestGroupsThatQueueBehindEachOtherKeepOffsetsDense,
		"view":              TestViewShowsWhatTheNextStartFinds,
		"dump":              TestDumpSelects,
		"inspect":           TestInspectAnswersAreBounded,
	} {
		if testing.Short() && !slices.Contains([]string{"power cut", "kill", "model", "state", "rewrite", "index", "view"}, name) {
			continue
		}
		t.Run(name, test)
	}
}

// secrets are what must not be found in any file of an encrypted spool.
var secrets = []string{"SECRET-TOPIC", "SECRET-CLIENT", "SECRET-PAYLOAD", "SECRET-USER", "SECRET-PROPERTY", "SECRET-KEY", "SECRET-VALUE", "SECRET-CURSOR"}

func shown(t testing.TB, dir string) (found []string) {
	t.Helper()
	for name, content := range snapshot(t, dir) {
		for _, s := range secrets {
			if strings.Contains(content, s) || strings.Contains(name, s) {
				found = append(found, filepath.Base(name)+": "+s)
			}
		}
	}
	slices.Sort(found)
	return found
}

func secretEntry(i int, expires time.Time) Entry {
	return Entry{
		Record: &Record{
			Topic: fmt.Sprintf("SECRET-TOPIC/%d", i%9), ClientID: fmt.Sprintf("SECRET-CLIENT-%d", i%4), UserName: "SECRET-USER", Payload: fmt.Appendf(nil, "SECRET-PAYLOAD %d", i),
			Properties: &Properties{ContentType: "SECRET-PROPERTY"}, ExpiresAt: expires.UnixNano(),
		},
		Changes: []Change{{"retained", fmt.Sprintf("SECRET-KEY/%d", i%9), fmt.Appendf(nil, "SECRET-VALUE %d", i)}},
	}
}

// fillSecrets has everything on the disk: sealed and active segments, a rewritten one, the journal, state, cursors.
func fillSecrets(t testing.TB, s *Spool, clock *fakeClock) {
	t.Helper()
	for round := range 4 {
		for i := range 100 {
			life := 10 * time.Minute
			if i%20 == 0 {
				life = 1000 * time.Hour
			}
			e := secretEntry(round*100+i, clock.now().Add(life))
			if i == 99 {
				put(t, s, e)
			} else if err := s.Append(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
		if round < 3 {
			rollAll(t, s)
		}
	}
	f := s.streams[0].segments()[0]
	clock.advance(time.Hour)
	if err := s.rewrite(t.Context(), f, s.clock.now()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.OpenCursor(t.Context(), "SECRET-CURSOR", DefaultStream, CursorOptions{Protect: true}); err != nil {
		t.Fatal(err)
	}
	put(t, s, Entry{Changes: []Change{{"retained", "SECRET-KEY/0", nil}}})
	if err := s.materialise(true); err != nil {
		t.Fatal(err)
	}
}

func encrypted(cfg Config, active int, files ...string) Config {
	cfg.Encryption = EncryptionConfig{Active: active}
	for i, f := range files {
		cfg.Encryption.Keys = append(cfg.Encryption.Keys, KeyConfig{ID: i + 1, File: f})
	}
	return cfg
}

func stateOf(t testing.TB, s *Spool) (keys []string) {
	t.Helper()
	if err := s.Load("retained", func(key string, value []byte) error {
		keys = append(keys, key+"="+string(value))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestEncryptedSpoolShowsNothing(t *testing.T) {
	clock := newFakeClock()
	plain := smallConfig(t.TempDir(), oneStream(nil))
	plain.Segment.Codec = "none"
	s := mustOpen(t, plain, Options{Now: clock.now})
	fillSecrets(t, s, clock)
	want := stateOf(t, s)
	mustClose(t, s)
	if found := strings.Join(shown(t, plain.Dir), "\n"); strings.Count(found, "meta.db") < 3 || strings.Count(found, ".db: SECRET-PAYLOAD") < 3 || !strings.Contains(found, ".journal: SECRET-PAYLOAD") {
		t.Fatalf("the test does not look well: without encryption it finds\n%s", found)
	}

	cfg := encrypted(plain, 1, newKeyFile(t))
	cfg.Dir = t.TempDir()
	s = mustOpen(t, cfg, Options{Now: clock.now})
	fillSecrets(t, s, clock)
	if found := shown(t, cfg.Dir); len(found) > 0 {
		t.Errorf("while it runs: %v", found)
	}
	mustClose(t, s)
	if found := shown(t, cfg.Dir); len(found) > 0 {
		t.Errorf("closed: %v", found)
	}
	s = mustOpen(t, cfg, Options{Now: clock.now})
	if got := stateOf(t, s); !slices.Equal(got, want) || !slices.IsSorted(got) || len(got) != 8 {
		t.Errorf("state: %q, want %q", got, want)
	}
	if n := len(dumpAll(t, s, DumpQuery{Stream: DefaultStream, Partition: -1, Expired: true})); n != 305 { // 5 of 100 are left in the rewritten one
		t.Errorf("%d records", n)
	}
	if got := dumpAll(t, s, DumpQuery{Stream: DefaultStream, Partition: -1, Expired: true, Filter: "SECRET-TOPIC/1", Client: "SECRET-CLIENT-2"}); len(got) == 0 {
		t.Error("nothing is found by the encrypted index")
	}
	mustClose(t, s)
	if r := mustVerify(t, cfg); len(r.Findings) > 0 {
		t.Errorf("verify: %v", r.Findings)
	}
}

func TestKeysAreRotated(t *testing.T) {
	clock := newFakeClock()
	first, second := newKeyFile(t), newKeyFile(t)
	base := smallConfig(t.TempDir(), oneStream(nil))
	run := func(cfg Config, from, to int) {
		t.Helper()
		s := mustOpen(t, cfg, Options{Now: clock.now})
		got, gaps := readAll(t, s, DefaultStream, 0, 0)
		if wantPayloads(t, got, 0, from); len(gaps) > 0 {
			t.Errorf("gaps %v", gaps)
		}
		putMany(t, s, from, to)
		put(t, s, Entry{Changes: []Change{{"a", "k", fmt.Appendf(nil, "%d", to)}}})
		rollAll(t, s)
		mustClose(t, s)
		v := mustView(t, cfg)
		page, err := v.ListSegments(t.Context(), SegmentsQuery{})
		if err != nil || page.Segments[len(page.Segments)-1].KeyID != uint32(cfg.Encryption.Active) {
			t.Errorf("newest segment: %+v %v", page.Segments[len(page.Segments)-1], err)
		}
		m, err := v.InspectMeta(t.Context(), MetaQuery{})
		if err != nil || m.Encrypted != (cfg.Encryption.Active != 0) {
			t.Errorf("meta.db is encrypted: %v, %v", m.Encrypted, err)
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
	}
	blocked := func(cfg Config, want ...string) {
		t.Helper()
		before := snapshot(t, cfg.Dir)
		for what, open := range map[string]func() error{
			"open":   func() error { _, err := Open(cfg, Options{}); return err },
			"view":   func() error { _, err := OpenView(cfg, Options{}); return err },
			"repair": func() error { _, err := Repair(t.Context(), cfg, Options{}, VerifyOptions{}); return err },
		} {
			err := open()
			for _, w := range want {
				if !errors.Is(err, ErrKey) || damaged(err) || !strings.Contains(err.Error(), w) {
					t.Errorf("%s: got %v, want %q", what, err, w)
				}
			}
		}
		delete(before, filepath.Join(cfg.Dir, "LOCK"))
		after := snapshot(t, cfg.Dir)
		for name, content := range before {
			if after[name] != content {
				t.Errorf("%s was changed or removed", name)
			}
		}
	}
	run(base, 0, 100)                                // plain
	run(encrypted(base, 1, first), 100, 200)         // encryption is turned on
	run(encrypted(base, 2, first, second), 200, 300) // another key
	run(encrypted(base, 0, first, second), 300, 400) // off
	run(encrypted(base, 2, first, second), 400, 500) // on again
	blocked(encrypted(base, 2, second, second), ".db: encrypted with key 1 ("+second+"): the file holds another key")
	only := base
	only.Encryption = EncryptionConfig{Active: 2, Keys: []KeyConfig{{ID: 2, File: second}}}
	blocked(only, ".db: encrypted with key 1: spool.encryption.keys does not list it")
	blocked(base, "encrypted with key")
	blocked(encrypted(base, 2, first, first), "meta.db: encrypted with key 2 ("+first+"): the file holds another key")
	missing := filepath.Join(t.TempDir(), "no")
	blocked(encrypted(base, 2, first, missing), "encryption: encryption key 2: open "+missing)
	run(encrypted(base, 1, first, second), 500, 600) // nothing was harmed by all that
}

func TestMissingKeyOfTheJournalBlocks(t *testing.T) {
	first, second := newKeyFile(t), newKeyFile(t)
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	s := mustOpen(t, encrypted(cfg, 1, first), Options{})
	s.materialiseMu.Lock() // all of it stays in the journal
	putMany(t, s, 0, 50)
	left := abandonSpool(t, cfg)
	s.materialiseMu.Unlock()
	mustClose(t, s)
	// A restart with a new key has written meta.db for it, and has died before it came to the journal.
	m, err := openMeta(filepath.Join(left.Dir, "meta.db"), false)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := loadKeys(encrypted(cfg, 2, first, second).Encryption)
	if err = errors.Join(err, m.unlock(keys, false), m.close()); err != nil {
		t.Fatal(err)
	}
	only := left
	only.Encryption = EncryptionConfig{Active: 2, Keys: []KeyConfig{{ID: 2, File: second}}}
	if _, err := Open(only, Options{}); !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), ".journal: encrypted with key 1") {
		t.Fatalf("got %v", err)
	}
	s = mustOpen(t, encrypted(left, 2, first, second), Options{})
	got, gaps := readAll(t, s, DefaultStream, 0, 0)
	if wantPayloads(t, got, 0, 50); len(gaps) > 0 {
		t.Errorf("gaps %v", gaps)
	}
}

func TestBitFlipsInEncryptedFilesAreFound(t *testing.T) {
	clock := newFakeClock()
	cfg := encrypted(smallConfig(t.TempDir(), oneStream(nil)), 1, newKeyFile(t))
	s := mustOpen(t, cfg, Options{Now: clock.now})
	fillSecrets(t, s, clock)
	mustClose(t, s)
	rnd := newRand(t)
	for _, pattern := range []string{"seg/default/*.db", "meta.db", "journal/*"} {
		files, _ := filepath.Glob(filepath.Join(cfg.Dir, pattern))
		for range 20 {
			image := abandonSpool(t, cfg)
			name := files[rnd.IntN(len(files))]
			path := filepath.Join(image.Dir, strings.TrimPrefix(name, cfg.Dir))
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			b[rnd.IntN(len(b))] ^= 1 << rnd.IntN(8)
			if err := os.WriteFile(path, b, 0o640); err != nil {
				t.Fatal(err)
			}
			v, err := OpenView(image, Options{Now: clock.now})
			if err != nil && !errors.Is(err, ErrUnsupported) { // a flipped version number
				t.Fatalf("%s: %v", pattern, err)
			}
			if err != nil {
				continue
			}
			if _, err := v.Verify(t.Context(), VerifyOptions{}); err != nil {
				t.Fatalf("%s: %v", pattern, err)
			}
			// Whatever comes out is what went in.
			for _, item := range dumpAll(t, v, DumpQuery{Stream: DefaultStream, Partition: -1, Expired: true}) {
				if !strings.Contains(item, "SECRET-PAYLOAD ") && !strings.Contains(item, "gap") {
					t.Fatalf("%s: %q", pattern, item)
				}
			}
			if err := v.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestDamagedValueIsLeftOut(t *testing.T) {
	cfg := encrypted(smallConfig(t.TempDir(), oneStream(nil)), 1, newKeyFile(t))
	s := mustOpen(t, cfg, Options{})
	put(t, s, Entry{Changes: []Change{{"a", "k1", []byte("v1")}, {"a", "k2", []byte("v2")}, {"a", "k3", []byte{}}}})
	if err := s.materialise(true); err != nil {
		t.Fatal(err)
	}
	var sealed []byte
	if err := s.meta.update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketSpaces).Bucket([]byte("a"))
		name := s.meta.key.Name("a", "k2")
		sealed = bytes.Clone(b.Get(name))
		sealed[len(sealed)-1] ^= 1
		return b.Put(name, sealed)
	}); err != nil {
		t.Fatal(err)
	}
	var keys []string
	if err := s.Load("a", func(key string, value []byte) error { keys = append(keys, key); return nil }); err != nil || !slices.Equal(keys, []string{"k1", "k3"}) {
		t.Errorf("%q %v", keys, err)
	}
}

// A conversion of meta.db that ends early has changed nothing, and the next start does away with what it left.
func TestInterruptedConversionIsBegunAgain(t *testing.T) {
	plain := smallConfig(t.TempDir(), oneStream(nil))
	s := mustOpen(t, plain, Options{})
	put(t, s, Entry{Changes: []Change{{"a", "k", []byte("v")}}})
	mustClose(t, s)
	left := filepath.Join(plain.Dir, "meta.db.convert")
	for _, cfg := range []Config{plain, encrypted(plain, 1, newKeyFile(t))} {
		b, err := os.ReadFile(filepath.Join(plain.Dir, "meta.db"))
		if err == nil {
			err = os.WriteFile(left, b[:len(b)/2], 0o640)
		}
		if err != nil {
			t.Fatal(err)
		}
		s := mustOpen(t, cfg, Options{})
		var got []string
		if err := s.Load("a", func(key string, value []byte) error { got = append(got, key+"="+string(value)); return nil }); err != nil || len(got) != 1 || got[0] != "k=v" {
			t.Errorf("%q %v", got, err)
		}
		mustClose(t, s)
		if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left behind: %v", err)
		}
	}
}

func TestEncryptionConfigIsChecked(t *testing.T) {
	f := func(e EncryptionConfig, want string) {
		t.Helper()
		cfg := DefaultConfig()
		cfg.Encryption = e
		err := cfg.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: got %v, want %q", e, err, want)
		}
	}
	f(EncryptionConfig{}, "")
	f(EncryptionConfig{Keys: []KeyConfig{{1, "a"}, {2, "b"}}, Active: 2}, "")
	f(EncryptionConfig{Keys: []KeyConfig{{1, "a"}}}, "")
	f(EncryptionConfig{Active: 1}, "encryption.active: there is no key 1")
	f(EncryptionConfig{Keys: []KeyConfig{{0, "a"}}}, "encryption.keys[0].id: 0 is not between")
	f(EncryptionConfig{Keys: []KeyConfig{{1, "a"}, {1, "b"}}}, "encryption.keys[1].id: 1 is already the ID of keys[0]")
	f(EncryptionConfig{Keys: []KeyConfig{{1, ""}}}, "encryption.keys[0].file: is empty")
}

// BenchmarkAppendEncrypted is what encryption costs a publisher: 1000 records a group.
func BenchmarkAppendEncrypted(b *testing.B) {
	for _, name := range []string{"plain", "encrypted"} {
		b.Run(name, func(b *testing.B) {
			cfg := DefaultConfig()
			cfg.Dir = b.TempDir()
			cfg.MinFree = 1 << 20
			if name == "encrypted" {
				cfg = encrypted(cfg, 1, newKeyFile(b))
			}
			s := mustOpen(b, cfg, Options{})
			payload := bytes.Repeat([]byte("telemetry "), 25)
			b.ReportAllocs()
			for b.Loop() {
				for i := range 1000 {
					e := Entry{Record: &Record{Topic: "plant/7/temp", ClientID: "device", Payload: payload}}
					if i == 999 {
						put(b, s, e)
					} else if err := s.Append(b.Context(), e); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/record")
		})
	}
}
