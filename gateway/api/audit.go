package api

import (
	"fmt"
	"net/http"

	"github.com/forebay-gateway/forebay/mqtt/audit"
)

// audited records every request that changes something, and every one that is refused.
func (s *server) audited(next http.Handler) http.Handler {
	if s.o.Audit == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(seen, r)
		e := audit.Event{Name: audit.Admin, Remote: r.RemoteAddr, Action: r.Method + " " + r.URL.Path, What: r.URL.RawQuery, Detail: fmt.Sprint(seen.status)}
		switch {
		case seen.status == http.StatusUnauthorized:
			e.Name, e.What = audit.AdminRefused, ""
		case r.Method == http.MethodGet || r.Method == http.MethodHead:
			return
		}
		s.o.Audit(e)
	})
}

// statusWriter remembers how a request was answered.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}
