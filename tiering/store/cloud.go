package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
)

// cloud is a bucket. It is opened when it is first used, and again when the credentials file changes or the store refuses what
// there is: a token or a key file that was replaced is taken without a restart.
type cloud struct {
	url    *url.URL
	prefix string // "" or with a slash at its end
	o      Options
	open   func(ctx context.Context, u *url.URL, credentials []byte) (*blob.Bucket, error)

	mu      sync.Mutex
	bucket  *blob.Bucket
	old     []*blob.Bucket // replaced; others may still use them, Close closes them
	stamp   fileStamp
	looked  time.Time
	refused time.Time // when the last bucket was opened because of a refusal
	closed  bool
}

var _ Store = (*cloud)(nil)

const (
	lookAgain   = 10 * time.Second // how late a changed credentials file may be noticed
	refuseAgain = 30 * time.Second // credentials of the chain are read again at most this often
	maxOld      = 4
)

// fileStamp tells whether a file has changed.
type fileStamp struct {
	size int64
	time time.Time
}

func openCloud(_ context.Context, u *url.URL, o Options) (Store, error) {
	c := &cloud{url: u, o: o}
	if c.o.Patience == 0 {
		c.o.Patience = patienceDefault
	}
	if p := strings.Trim(u.Path, "/"); p != "" {
		c.prefix = p + "/"
	}
	switch u.Scheme {
	case "s3":
		c.open = openS3
	case "gs":
		c.open = openGCS
	case "azblob":
		c.open = openAzure
	}
	return c, nil
}

// now is the bucket to use.
func (c *cloud) now(ctx context.Context) (*blob.Bucket, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.New("store is closed")
	}
	if c.bucket != nil && (c.o.CredentialsFile == "" || time.Since(c.looked) < lookAgain) {
		return c.bucket, nil
	}
	var stamp fileStamp
	var credentials []byte
	if c.o.CredentialsFile != "" {
		fi, err := os.Stat(c.o.CredentialsFile)
		if err != nil {
			return nil, fmt.Errorf("%w: credentials_file: %w", ErrDenied, err)
		}
		stamp = fileStamp{fi.Size(), fi.ModTime()}
		c.looked = time.Now()
		if c.bucket != nil && stamp == c.stamp {
			return c.bucket, nil
		}
		if credentials, err = os.ReadFile(c.o.CredentialsFile); err != nil {
			return nil, fmt.Errorf("%w: credentials_file: %w", ErrDenied, err)
		}
	}
	b, err := c.open(ctx, c.url, credentials)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", c, err)
	}
	if c.bucket != nil {
		c.old = append(c.old, c.bucket)
	}
	for len(c.old) > maxOld { // nobody uses one that was replaced so long ago
		_ = c.old[0].Close()
		c.old = c.old[1:]
	}
	c.bucket, c.stamp = b, stamp
	return b, nil
}

// forget has the bucket opened again, with the credentials as they are then.
func (c *cloud) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bucket == nil || c.closed || time.Since(c.refused) < refuseAgain {
		return
	}
	c.refused = time.Now()
	c.old = append(c.old, c.bucket)
	c.bucket, c.looked = nil, time.Time{}
}

// Put implements Store. It uses the library's Upload and not its Writer: the Writer of Azure touches a pipe that its own goroutine
// has let go of when the store refuses.
func (c *cloud) Put(ctx context.Context, key string, r io.Reader, size int64, o PutOptions) error {
	if err := checkKey(key); err != nil {
		return fmt.Errorf("put: %w", err)
	}
	b, err := c.now(ctx)
	if err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	wait := newPatience(ctx, c.o.Patience+time.Duration(size)*time.Second/slowest)
	defer wait.end()
	exact := newExactReader(wait.ctx, wait.sourceOf(r), size)
	exact.failed = func() { wait.cancel(nil) } // before the library sees the error: the one of Google stores what came until then
	w := &blob.WriterOptions{
		IfNotExist: o.IfAbsent, ContentType: "application/octet-stream", DisableContentTypeDetection: true,
		BufferSize: int(min(max(size+1, minPiece), maxPiece)), MaxConcurrency: 1,
	}
	err = b.Upload(wait.ctx, c.prefix+key, exact, w)
	if exact.err != nil {
		return fmt.Errorf("put %s: %w", key, exact.err) // the source's own; what the library makes of it says less
	}
	if err == nil {
		return nil
	}
	if code := gcerrors.Code(err); o.IfAbsent && (code == gcerrors.FailedPrecondition || code == gcerrors.AlreadyExists || conditional(err)) {
		return fmt.Errorf("put %s: %w", key, ErrExist)
	}
	return c.fault("put", key, wait.told(err))
}

// The library reads an object into memory in pieces, each one request.
const (
	minPiece = 5 << 20 // S3 takes no less
	maxPiece = 32 << 20
)

// conditional finds the answers to a refused condition that gocloud does not know.
func conditional(err error) bool {
	for _, s := range []string{"PreconditionFailed", "ConditionalRequestConflict", "BlobAlreadyExists", "conditionNotMet"} {
		if strings.Contains(err.Error(), s) {
			return true
		}
	}
	return false
}

// Get implements Store.
func (c *cloud) Get(ctx context.Context, key string, offset, n int64) (io.ReadCloser, error) {
	if err := checkKey(key); err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	b, err := c.now(ctx)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", key, err)
	}
	wait := newPatience(ctx, c.o.Patience)
	r, err := b.NewRangeReader(wait.ctx, c.prefix+key, offset, n, nil)
	if err != nil {
		wait.end()
		return nil, c.fault("get", key, wait.told(err))
	}
	return wait.readerOf(r), nil
}

// Stat implements Store.
func (c *cloud) Stat(ctx context.Context, key string) (Object, error) {
	if err := checkKey(key); err != nil {
		return Object{}, fmt.Errorf("stat: %w", err)
	}
	b, err := c.now(ctx)
	if err != nil {
		return Object{}, fmt.Errorf("stat %s: %w", key, err)
	}
	wait := newPatience(ctx, c.o.Patience)
	defer wait.end()
	a, err := b.Attributes(wait.ctx, c.prefix+key)
	if err != nil {
		return Object{}, c.fault("stat", key, wait.told(err))
	}
	return Object{Key: key, Size: a.Size, Time: a.ModTime}, nil
}

// List implements Store.
func (c *cloud) List(ctx context.Context, prefix string, fn func(Object) error) error {
	b, err := c.now(ctx)
	if err != nil {
		return fmt.Errorf("list %s: %w", prefix, err)
	}
	wait := newPatience(ctx, c.o.Patience)
	defer wait.end()
	for it := b.List(&blob.ListOptions{Prefix: c.prefix + prefix}); ; {
		wait.start()
		o, err := it.Next(wait.ctx)
		wait.stop()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return c.fault("list", prefix, wait.told(err))
		}
		if o.IsDir {
			continue
		}
		if err := fn(Object{Key: strings.TrimPrefix(o.Key, c.prefix), Size: o.Size, Time: o.ModTime}); err != nil {
			return err
		}
	}
}

// Delete implements Store.
func (c *cloud) Delete(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	b, err := c.now(ctx)
	if err != nil {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	wait := newPatience(ctx, c.o.Patience)
	defer wait.end()
	if err := b.Delete(wait.ctx, c.prefix+key); err != nil {
		if err = c.fault("delete", key, wait.told(err)); errors.Is(err, ErrNotExist) {
			return nil
		}
		return err
	}
	return nil
}

func (c *cloud) String() string {
	s := c.url.Scheme + "://" + c.url.Host
	if c.prefix != "" {
		s += "/" + strings.TrimSuffix(c.prefix, "/")
	}
	return s
}

// Close implements Store.
func (c *cloud) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	all := c.old
	if c.bucket != nil {
		all = append(all, c.bucket)
	}
	c.bucket, c.old = nil, nil
	var errs []error
	for _, b := range all {
		errs = append(errs, b.Close())
	}
	return errors.Join(errs...)
}
