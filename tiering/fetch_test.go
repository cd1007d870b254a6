package tiering

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"

	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// mute is a store that ends each call as one does that says nothing for minutes, or gives a byte before.
type mute struct {
	store.Store
	content     []byte // nil gives none
	gets, stats int
}

var errMute = fmt.Errorf("no answer within 2m0s: %w", context.DeadlineExceeded)

func (s *mute) Get(_ context.Context, _ string, offset, _ int64) (io.ReadCloser, error) {
	if s.gets++; s.content == nil || s.gets%2 == 0 { // every other call says nothing at all
		return nil, errMute
	}
	return io.NopCloser(io.MultiReader(bytes.NewReader(s.content[offset:offset+1]), silence{})), nil
}

func (s *mute) Stat(context.Context, string) (store.Object, error) {
	s.stats++
	return store.Object{}, errMute
}

type silence struct{}

func (silence) Read([]byte) (int, error) { return 0, errMute }

// Each call to a store that is silent takes minutes: whoever reads is told of it after few, so that logs and commands say what they wait for.
func TestFetchFromASilentStoreEndsAfterFewCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &mute{}
		seg := &manifest.Segment{Stream: stream, Sequence: 1, Bytes: 100, PartSize: 100}
		if _, err := Fetch(t.Context(), s, seg, io.Discard, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if s.gets > silentTries || s.stats != 0 {
			t.Errorf("it was asked %d times for the bytes and %d times for the size", s.gets, s.stats)
		}
	})
}

// While bytes come, however slowly, it goes on.
func TestFetchGoesOnWhileASilentStoreGivesAByteNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		content := []byte("twenty bytes of data")
		sum := sha256.Sum256(content)
		seg := &manifest.Segment{Stream: stream, Sequence: 1, Bytes: int64(len(content)), PartSize: int64(len(content)), SHA256: hex.EncodeToString(sum[:])}
		var got bytes.Buffer
		if _, err := Fetch(t.Context(), &mute{content: content}, seg, &got, nil); err != nil || !bytes.Equal(got.Bytes(), content) {
			t.Errorf("got %q: %v", got.Bytes(), err)
		}
	})
}
