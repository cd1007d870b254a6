package auth

import (
	"context"
	"errors"
)

// Exchange is one enhanced authentication (MQTT 5, 4.12). Step by step the client's data goes in and the server's comes out,
// until there is an identity or an error. It belongs to one connection and is not for use by several goroutines.
type Exchange struct {
	auth    *Auth
	request *Request
	scram   *scram
	state   exchangeState
}

type exchangeState uint8

const (
	wantsFirst exchangeState = iota
	wantsFinal
	over
)

// Step is an answer of an Exchange.
type Step struct {
	Data     []byte    // to be sent; nil is none
	Identity *Identity // not nil: success, Data goes with it; nil: Data is a challenge, the client has to answer
}

// Start begins an exchange with what the client sent in its CONNECT, or in its AUTH to authenticate again. data nil is none: the
// client waits for the server. Errors are those of Authenticate, and ErrBadMethod and ErrProtocol.
func (a *Auth) Start(ctx context.Context, r *Request, name string, data []byte) (*Exchange, Step, error) {
	x := &Exchange{auth: a, request: r}
	if name != ScramSHA256 || !a.scram[r.Listener] {
		return x, Step{}, x.fail(ErrBadMethod)
	}
	if a.bans.banned(r.ClientID, r.User, r.Remote) {
		return x, Step{}, x.fail(ErrBanned)
	}
	x.scram = newScram(a.users.load())
	if data == nil {
		return x, Step{}, nil
	}
	step, err := x.Step(ctx, data)
	return x, step, err
}

// Step goes on with the next data of the client. After an error or an identity the exchange is over.
func (x *Exchange) Step(ctx context.Context, data []byte) (Step, error) {
	switch x.state {
	case wantsFirst:
		out, err := x.scram.begin(string(data))
		if err != nil {
			return Step{}, x.fail(err)
		}
		if x.auth.bans.banned(x.request.ClientID, x.scram.user, x.request.Remote) {
			return Step{}, x.fail(ErrBanned)
		}
		if err := x.auth.throttle.admit(ctx, x.request.Remote, x.scram.user); err != nil {
			return Step{}, x.fail(err)
		}
		x.state = wantsFinal
		return Step{Data: []byte(out)}, nil
	case wantsFinal:
		out, err := x.scram.finish(string(data))
		if err != nil {
			return Step{}, x.fail(err)
		}
		id, err := x.decided(x.scram.known.identity(MethodScram), nil)
		return Step{Data: []byte(out), Identity: id}, err
	}
	return Step{}, ErrProtocol
}

func (x *Exchange) fail(err error) error {
	_, err = x.decided(nil, err)
	return err
}

// decided is Auth.decided for the user of the exchange.
func (x *Exchange) decided(id *Identity, err error) (*Identity, error) {
	x.state = over
	r := *x.request
	if x.scram != nil && x.scram.user != "" {
		r.User = x.scram.user
	}
	if errors.Is(err, ErrProtocol) && x.scram != nil {
		x.auth.throttle.failed(r.Remote, "") // whoever fuzzes is slowed too
	}
	return x.auth.decided(&r, id, err)
}
