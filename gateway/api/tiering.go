package api

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering"
	"github.com/forebay-gateway/forebay/tiering/backup"
)

// Backup makes backups of the running spool.
type Backup interface {
	StartBackup(BackupRequest) error
	BackupStatus() backup.Status
}

// BackupRequest is what a backup is asked for with.
type BackupRequest struct {
	URL             string
	CredentialsFile string // of the store, on the gateway's machine
	Keep            int    // so many of the newest are kept; 0 keeps all
	Verify          bool   // read back what earlier ones have stored
}

// ErrNoTiering means that the gateway stores nothing elsewhere.
var ErrNoTiering = errors.New("tiering is not configured: tiering.url is empty")

// tiering serves
//
//	GET  /api/v1/tiering   what is stored, how it grows and what it costs
//	GET  /api/v1/backup    how the last backup is
//	POST /api/v1/backup    begin one; parameters url, credentials_file, keep (backups), and verify=true
func (s *server) tiering(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/v1/tiering", s.answer(func(context.Context, *query) (any, error) {
		if s.o.Tier == nil || s.o.Tier() == nil {
			if s.o.Spool == nil || s.o.Spool() == nil { // the tier starts with it
				return nil, noSpool
			}
			return nil, ErrNoTiering
		}
		return s.o.Tier().Status(), nil
	}))
	mux.HandleFunc("GET /api/v1/backup", s.answer(func(context.Context, *query) (any, error) {
		if s.o.Backup == nil {
			return nil, errors.ErrUnsupported
		}
		return s.o.Backup.BackupStatus(), nil
	}))
	mux.HandleFunc("POST /api/v1/backup", s.answer(func(_ context.Context, q *query) (any, error) {
		if s.o.Backup == nil {
			return nil, errors.ErrUnsupported
		}
		r := BackupRequest{URL: q.text("url"), CredentialsFile: q.text("credentials_file"), Keep: q.number("keep", 0), Verify: q.text("verify") == "true"}
		if q.err != nil {
			return nil, q.err
		}
		if err := s.o.Backup.StartBackup(r); errors.Is(err, spool.ErrClosed) {
			return nil, noSpool
		} else if err != nil {
			return nil, err
		}
		return s.o.Backup.BackupStatus(), nil
	}))
}

// Tiering describes what is stored.
func (c *Client) Tiering(ctx context.Context) (tiering.Status, error) {
	return call[tiering.Status](ctx, c, http.MethodGet, "/tiering", nil)
}

// StartBackup begins a backup.
func (c *Client) StartBackup(ctx context.Context, r BackupRequest) (backup.Status, error) {
	v := values{}
	v.text("url", r.URL)
	v.text("credentials_file", r.CredentialsFile)
	v.number("keep", r.Keep, 0)
	if r.Verify {
		v.text("verify", "true")
	}
	return call[backup.Status](ctx, c, http.MethodPost, "/backup", url.Values(v))
}

// BackupStatus is how the last backup is.
func (c *Client) BackupStatus(ctx context.Context) (backup.Status, error) {
	return call[backup.Status](ctx, c, http.MethodGet, "/backup", nil)
}
