package auth

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/semaphore"
)

// What happens while the hook is down.
const (
	WhenDownDeny   = "deny"
	WhenDownCached = "cached"
	WhenDownNext   = "next"
)

const (
	maxHookReply   = 64 << 10
	hookDenyMemory = 5 * time.Second // a refusal is remembered that long at most: the operator may just have added the device
)

// hook is the method http.
type hook struct {
	cfg    HTTPConfig
	client func() *http.Client
	token  func() string
	now    func() time.Time
	down   func(error)
	room   *semaphore.Weighted
	cache  *cache[digest, *hookAnswer]
}

// hookRequest is what the hook is asked.
type hookRequest struct {
	ClientID       string           `json:"client_id"`
	UserName       *string          `json:"user_name,omitempty"`
	Password       *string          `json:"password,omitempty"`
	PasswordBase64 *string          `json:"password_base64,omitempty"` // instead of password when it is not text
	Listener       string           `json:"listener"`
	Address        string           `json:"address,omitempty"`
	Certificate    *hookCertificate `json:"certificate,omitempty"`
}

type hookCertificate struct {
	CommonName string   `json:"common_name,omitempty"`
	DNS        []string `json:"dns,omitempty"`
	URIs       []string `json:"uris,omitempty"`
	Emails     []string `json:"emails,omitempty"`
	SHA256     string   `json:"sha256"`
}

// hookAnswer is what it may say.
type hookAnswer struct {
	Result    string         `json:"result"` // allow, deny or next
	User      string         `json:"user"`
	Groups    []string       `json:"groups"`
	Claims    map[string]any `json:"claims"`
	Publish   []string       `json:"publish"`
	Subscribe []string       `json:"subscribe"`
	ExpiresAt int64          `json:"expires_at"` // Unix seconds; 0 is never
}

func newHook(cfg HTTPConfig, client func() *http.Client, token func() string, now func() time.Time, down func(error)) *hook {
	return &hook{
		cfg: cfg, client: client, token: token, now: now, down: down,
		room: semaphore.NewWeighted(int64(cfg.MaxRequests)), cache: newCache[digest, *hookAnswer](cfg.CacheSize),
	}
}

// authenticate implements method.
func (h *hook) authenticate(ctx context.Context, r *Request) (*Identity, error) {
	q := hookRequest{ClientID: r.ClientID, Listener: r.Listener}
	if r.HasUser {
		q.UserName = &r.User
	}
	if r.HasPassword {
		if s := string(r.Password); utf8.ValidString(s) {
			q.Password = &s
		} else {
			s := base64.StdEncoding.EncodeToString(r.Password)
			q.PasswordBase64 = &s
		}
	}
	if r.Remote.IsValid() {
		q.Address = r.Remote.String()
	}
	if c := NewCertificateInfo(r.Certificate); c != nil {
		q.Certificate = &hookCertificate{CommonName: c.CommonName, DNS: c.DNS, URIs: c.URIs, Emails: c.Emails, SHA256: c.Fingerprint}
	}
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	key := digestOf(string(body))
	old, at, have := h.cache.get(key)
	if have && h.now().Sub(at) < h.memory(old) && !old.expired(h.now()) {
		return old.identity(r)
	}
	answer, err := h.ask(ctx, body)
	if err == nil {
		h.cache.put(key, answer, h.now())
		return answer.identity(r)
	}
	h.down(err)
	switch h.cfg.WhenDown {
	case WhenDownNext:
		return nil, errNext
	case WhenDownCached:
		if have && old.Result == "allow" && h.now().Sub(at) < h.cfg.CachedFor.Std() && !old.expired(h.now()) {
			return old.identity(r)
		}
	}
	return nil, ErrUnavailable
}

func (h *hook) memory(a *hookAnswer) time.Duration {
	ttl := h.cfg.CacheTTL.Std()
	if a.Result != "allow" {
		ttl = min(ttl, hookDenyMemory)
	}
	return ttl
}

// ask posts one question. An error means that the hook is down: whatever is not a clear answer must not let anybody in.
func (h *hook) ask(ctx context.Context, body []byte) (*hookAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Timeout.Std())
	defer cancel()
	if err := h.room.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("%d requests are running: %w", h.cfg.MaxRequests, err)
	}
	defer h.room.Release(1)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.cfg.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if token := h.token(); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := h.client().Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return &hookAnswer{Result: "deny"}, nil
	default:
		return nil, fmt.Errorf("status %s", resp.Status)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxHookReply+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxHookReply {
		return nil, fmt.Errorf("answer is longer than %d bytes", maxHookReply)
	}
	return parseAnswer(data)
}

func parseAnswer(data []byte) (*hookAnswer, error) {
	var a hookAnswer
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&a); err != nil {
		return nil, fmt.Errorf("answer is not JSON as wanted: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("answer: something follows the JSON object")
	}
	if !slices.Contains([]string{"allow", "deny", "next"}, a.Result) {
		return nil, fmt.Errorf("answer: result %q is not allow, deny or next", a.Result)
	}
	for _, f := range append(append([]string{}, a.Publish...), a.Subscribe...) {
		if err := checkFilter(f); err != nil {
			return nil, fmt.Errorf("answer: %w", err)
		}
	}
	if a.ExpiresAt < 0 || strings.ContainsRune(a.User, 0) || !utf8.ValidString(a.User) {
		return nil, errors.New("answer: user or expires_at is not valid")
	}
	return &a, nil
}

func (a *hookAnswer) expired(now time.Time) bool {
	return a.ExpiresAt != 0 && now.Unix() >= a.ExpiresAt
}

func (a *hookAnswer) identity(r *Request) (*Identity, error) {
	switch a.Result {
	case "deny":
		return nil, ErrBadCredentials
	case "next":
		return nil, errNext
	}
	id := &Identity{Method: MethodHTTP, User: a.User, Groups: a.Groups, Claims: flattenObject(a.Claims)}
	if id.User == "" && r.HasUser {
		id.User = r.User
	}
	if a.ExpiresAt != 0 {
		id.ExpiresAt = time.Unix(a.ExpiresAt, 0)
	}
	if a.Publish != nil || a.Subscribe != nil {
		id.Grants = &Grants{Publish: a.Publish, Subscribe: a.Subscribe}
	}
	return id, nil
}
