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
	StartBackup(url, credentialsFile string) error
	BackupStatus() backup.Status
}

// ErrNoTiering means that the gateway stores nothing elsewhere.
var ErrNoTiering = errors.New("tiering is not configured: tiering.url is empty")

// tiering serves
//
//	GET  /api/v1/tiering   what is stored, how it grows and what it costs
//	GET  /api/v1/backup    how the last backup is
//	POST /api/v1/backup    begin one; parameters url and credentials_file
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
		if err := s.o.Backup.StartBackup(q.text("url"), q.text("credentials_file")); errors.Is(err, spool.ErrClosed) {
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
func (c *Client) StartBackup(ctx context.Context, to, credentialsFile string) (backup.Status, error) {
	v := values{}
	v.text("url", to)
	v.text("credentials_file", credentialsFile)
	return call[backup.Status](ctx, c, http.MethodPost, "/backup", url.Values(v))
}

// BackupStatus is how the last backup is.
func (c *Client) BackupStatus(ctx context.Context) (backup.Status, error) {
	return call[backup.Status](ctx, c, http.MethodGet, "/backup", nil)
}
