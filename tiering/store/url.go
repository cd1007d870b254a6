package store

import (
	"fmt"
	"net/url"
	"strings"
)

// parseURL reads the URL of a store. A plain absolute path is a directory.
func parseURL(raw string) (*url.URL, error) {
	if strings.HasPrefix(raw, "/") {
		return &url.URL{Scheme: "file", Path: raw}, nil
	}
	u, err := url.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%q is not a URL: %w", redacted(raw), err)
	}
	switch u.Scheme {
	case "file":
		switch {
		case u.Host != "":
			return nil, fmt.Errorf("%q: a directory has no host: want file:///path", raw)
		case u.Path == "" || u.Path == "/":
			return nil, fmt.Errorf("%q names no directory: want file:///path", raw)
		case u.RawQuery != "":
			return nil, fmt.Errorf("%q: a directory has no parameters", raw)
		}
	case "s3", "gs", "azblob":
		if u.Host == "" {
			return nil, fmt.Errorf("%q names no bucket: want %s://bucket/prefix", redacted(raw), u.Scheme)
		}
		if u.User != nil {
			return nil, fmt.Errorf("%q: credentials do not belong into the URL: use credentials_file or the usual environment", u.Redacted())
		}
		if prefix := strings.Trim(u.Path, "/"); prefix != "" {
			if err := checkKey(prefix); err != nil {
				return nil, fmt.Errorf("%q: %w", redacted(raw), err)
			}
		}
		if _, err := url.ParseQuery(u.RawQuery); err != nil {
			return nil, fmt.Errorf("%q: %w", redacted(raw), err)
		}
	default:
		return nil, fmt.Errorf("%q: want file:///path, s3://bucket/prefix, gs://bucket/prefix or azblob://container/prefix", redacted(raw))
	}
	return u, nil
}

// redacted is a URL without what might be a secret in its parameters.
func redacted(raw string) string {
	before, _, has := strings.Cut(raw, "?")
	if has {
		return before + "?..."
	}
	return before
}
