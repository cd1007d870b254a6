package admin

import (
	"crypto/subtle"
	"net/http"
	"strings"
)

// Authorized reports whether a request shows the token, or a client certificate that the listener has verified: its CAs are for whoever may
// do everything here. Without a token nobody has it.
func Authorized(r *http.Request, token string) bool {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return true
	}
	shown, has := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return token != "" && has && subtle.ConstantTimeCompare([]byte(shown), []byte(token)) == 1
}

// knows reports whether a request is told everything.
func (s *Server) knows(r *http.Request) bool { return !s.cfg.RequireAuth || Authorized(r, s.token) }

// guarded answers only those who may know, with require_auth.
func (s *Server) guarded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.knows(r) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "want the token of the file admin_token in gateway.data_dir as Authorization: Bearer, or a client certificate", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	})
}
