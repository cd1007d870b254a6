package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/bridge/replay"
	"github.com/forebay-gateway/forebay/gateway/api"
)

func TestWhoDoesNotAnswerAsAGatewayMayBeAtTheWrongAddress(t *testing.T) {
	f := func(status int, body, want string, hint bool) {
		t.Helper()
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}))
		defer srv.Close()
		c := &api.Client{Address: strings.TrimPrefix(srv.URL, "http://")}
		_, err := c.StartReplay(t.Context(), replay.Request{})
		if err == nil {
			t.Fatalf("%d %s: no error", status, body)
		}
		text := strings.ReplaceAll(hinted(c, err).Error(), c.Address, "ADDRESS")
		first, rest, _ := strings.Cut(text, "\n")
		if first != want || strings.Contains(rest, "--admin") != hint {
			t.Errorf("%d %s: got %q, want %q and a hint: %t", status, body, text, want, hint)
		}
	}
	f(400, `{"error":"replay: from \"soon\": want a time: invalid"}`, `gateway at ADDRESS: replay: from "soon": want a time`, false)
	f(404, `{"error":"\"x\": no such route"}`, `gateway at ADDRESS: "x": no such route`, false)
	f(401, `{"error":"want the token"}`, "gateway at ADDRESS: the gateway refuses the token: want the token", true)
	f(404, "<html>no page</html>", "gateway at ADDRESS: 404 Not Found", true)
	f(502, "", "gateway at ADDRESS: 502 Bad Gateway", true)
}
