package auth

import (
	"context"
	"time"
)

// passwords is the method password.
type passwords struct {
	file *source[*Passwords]
	gate *gate
	now  func() time.Time

	// verified remembers passwords that were right, so that a crowd that returns after an outage is not hashed again. The
	// key covers the user's line in the file: a changed password is not found any more.
	verified *cache[digest, struct{}]
	ttl      time.Duration
}

// authenticate implements method. Somebody who is not in the file costs a hash like somebody who is.
func (p *passwords) authenticate(ctx context.Context, r *Request) (*Identity, error) {
	if !r.HasUser || !r.HasPassword {
		return nil, errNext
	}
	file := p.file.load()
	c := file.users[r.User]
	h, stamp := file.decoy, ""
	if c != nil && c.hash != nil {
		h, stamp = c.hash, c.stamp
	}
	key := digestOf(r.User, string(r.Password), stamp)
	if _, at, ok := p.verified.get(key); ok && p.now().Sub(at) < p.ttl && stamp != "" {
		return c.identity(MethodPassword), nil
	}
	right, err := p.gate.verify(ctx, h, r.Password)
	if err != nil {
		return nil, err
	}
	if !right || stamp == "" {
		return nil, errNext
	}
	if p.ttl > 0 {
		p.verified.put(key, struct{}{}, p.now())
	}
	return c.identity(MethodPassword), nil
}

func (c *credential) identity(m Method) *Identity {
	return &Identity{Method: m, User: c.user, Groups: c.groups, stamp: c.stamp}
}
