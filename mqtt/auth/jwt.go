package auth

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const maxToken = 16 << 10 // bytes; identity providers stay below 8 KiB, for HTTP headers end there

// algorithms are those that may be configured. There is no none, and no HMAC: a shared secret that every verifier has can sign
// for every client.
var algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// tokens is the method jwt: the password is a signed token.
type tokens struct {
	cfg        JWTConfig
	algorithms []jose.SignatureAlgorithm
	keys       keys
	now        func() time.Time
}

func newTokens(cfg JWTConfig, k keys, now func() time.Time) *tokens {
	t := &tokens{cfg: cfg, keys: k, now: now}
	for _, a := range cfg.Algorithms {
		t.algorithms = append(t.algorithms, jose.SignatureAlgorithm(a))
	}
	return t
}

// authenticate implements method.
func (t *tokens) authenticate(ctx context.Context, r *Request) (*Identity, error) {
	if !r.HasPassword || len(r.Password) > maxToken {
		return nil, errNext
	}
	// Refuses every algorithm but those, and an unknown critical header.
	token, err := jwt.ParseSigned(string(r.Password), t.algorithms)
	if err != nil || len(token.Headers) != 1 {
		return nil, errNext
	}
	header := token.Headers[0]
	if _, ok := header.ExtraHeaders["crit"]; ok {
		return nil, errNext
	}
	// Keys that the token brings with itself (jwk, jku, x5c) are not looked at.
	candidates, err := t.keys.find(ctx, header.KeyID, jose.SignatureAlgorithm(header.Algorithm))
	if err != nil {
		return nil, err
	}
	for _, k := range candidates {
		var std jwt.Claims
		var all map[string]json.RawMessage
		if token.Claims(k.Key, &std, &all) == nil {
			return t.accept(r, std, all)
		}
	}
	return nil, errNext
}

// accept checks the claims of a token whose signature is good.
func (t *tokens) accept(r *Request, std jwt.Claims, all map[string]json.RawMessage) (*Identity, error) {
	expected := jwt.Expected{Issuer: t.cfg.Issuer, Time: t.now()}
	if len(t.cfg.Audience) > 0 {
		expected.AnyAudience = t.cfg.Audience
	}
	if std.ValidateWithLeeway(expected, t.cfg.Leeway.Std()) != nil {
		return nil, errNext
	}
	if std.Expiry == nil && !t.cfg.AllowNoExpiry {
		return nil, errNext
	}
	claims := flatten(all)
	user := claims[t.cfg.UserClaim]
	if len(user) != 1 || user[0] == "" || strings.ContainsRune(user[0], 0) {
		return nil, errNext
	}
	if t.cfg.CheckUserName && r.User != user[0] {
		return nil, errNext
	}
	if c := t.cfg.ClientIDClaim; c != "" && !slices.Contains(claims[c], r.ClientID) {
		return nil, errNext
	}
	id := &Identity{Method: MethodJWT, User: user[0], Claims: claims}
	if t.cfg.GroupsClaim != "" {
		id.Groups = claims[t.cfg.GroupsClaim]
	}
	if std.Expiry != nil {
		id.ExpiresAt = std.Expiry.Time().Add(t.cfg.Leeway.Std())
	}
	if publish, subscribe := t.grants(claims, all); publish != nil || subscribe != nil {
		id.Grants = &Grants{Publish: publish, Subscribe: subscribe}
	}
	return id, nil
}

// grants takes the filters of a token. A claim that is there and empty grants nothing, which is not the same as no claim.
func (t *tokens) grants(claims map[string][]string, all map[string]json.RawMessage) (publish, subscribe []string) {
	take := func(name string) []string {
		if _, ok := all[name]; !ok || name == "" {
			return nil
		}
		return append([]string{}, claims[name]...)
	}
	return take(t.cfg.PublishClaim), take(t.cfg.SubscribeClaim)
}

const (
	maxClaims      = 128 // names and, of each list, values
	maxClaimsDepth = 4
)

// flatten makes claims comparable, see flattenObject.
func flatten(all map[string]json.RawMessage) map[string][]string {
	object := make(map[string]any, len(all))
	for name, raw := range all {
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.UseNumber()
		var v any
		if dec.Decode(&v) == nil {
			object[name] = v
		}
	}
	return flattenObject(object)
}

// flattenObject makes a map of texts: numbers and booleans as JSON writes them, lists as several values, objects by names with
// dots: realm_access.roles. What is beyond the bounds is left out, in alphabetical order.
func flattenObject(object map[string]any) map[string][]string {
	out := map[string][]string{}
	var add func(name string, v any, depth int)
	add = func(name string, v any, depth int) {
		if len(out) >= maxClaims && out[name] == nil || len(out[name]) >= maxClaims || depth > maxClaimsDepth {
			return
		}
		switch v := v.(type) {
		case string:
			out[name] = append(out[name], v)
		case bool:
			out[name] = append(out[name], strconv.FormatBool(v))
		case json.Number:
			out[name] = append(out[name], v.String())
		case []any:
			for _, one := range v {
				if _, object := one.(map[string]any); !object {
					add(name, one, depth+1)
				}
			}
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				add(name+"."+key, v[key], depth+1)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		add(name, object[name], 0)
	}
	return out
}

func checkAlgorithms(list []string) error {
	if len(list) == 0 {
		return fmt.Errorf("is empty: want some of %v", algorithms)
	}
	for _, a := range list {
		if !slices.Contains(algorithms, a) {
			return fmt.Errorf("%q is not allowed: want some of %v", a, algorithms)
		}
	}
	return nil
}
