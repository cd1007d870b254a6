package auth

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
)

// RFC 7677, 3: user "user", password "pencil".
func rfc7677(t testing.TB) (*Passwords, *scramKeys) {
	salt, err := base64.StdEncoding.DecodeString("W22ZaJ0SNY7soEsUEjb6gQ==")
	if err != nil {
		t.Fatal(err)
	}
	k, err := deriveScramKeys("pencil", salt, 4096)
	if err != nil {
		t.Fatal(err)
	}
	p, err := ParsePasswords("users", []byte("user::"+k.String()), 0)
	if err != nil {
		t.Fatal(err)
	}
	return p, k
}

const (
	rfcFirst  = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
	rfcServer = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
	rfcFinal  = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)

func TestScramKeepsTheVectorsOfRFC7677(t *testing.T) {
	p, _ := rfc7677(t)
	s := newScram(p)
	s.nonce = rfcServer
	first, err := s.begin(rfcFirst)
	if want := "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"; err != nil || first != want {
		t.Fatalf("%q, %v", first, err)
	}
	final, err := s.finish(rfcFinal)
	if want := "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="; err != nil || final != want {
		t.Errorf("%q, %v", final, err)
	}
}

func TestScramRefuses(t *testing.T) {
	p, _ := rfc7677(t)
	first := func(message string, want error) {
		t.Helper()
		if _, err := newScram(p).begin(message); !errors.Is(err, want) {
			t.Errorf("first %q: %v, want %v", message, err, want)
		}
	}
	first("", ErrProtocol)
	first("n,,", ErrProtocol)
	first("n,,n=user", ErrProtocol)
	first("n,,n=user,r=", ErrProtocol)
	first("n,,n=user,r=a b", ErrProtocol)
	first("n,,r=abc,n=user", ErrProtocol)
	first("n,,m=ext,n=user,r=abc", ErrProtocol)
	first("p=tls-unique,,n=user,r=abc", ErrProtocol)
	first("x,,n=user,r=abc", ErrProtocol)
	first("n,b=x,n=user,r=abc", ErrProtocol)
	first("n,,n=us=er,r=abc", ErrProtocol)
	first("n,,n=,r=abc", ErrProtocol)
	first("n,a=admin,n=user,r=abc", ErrBadCredentials)
	first("n,a=user,n=user,r=abc", nil)
	first("y,,n=user,r=abc,x=later", nil)

	final := func(message string, want error) {
		t.Helper()
		s := newScram(p)
		s.nonce = rfcServer
		if _, err := s.begin(rfcFirst); err != nil {
			t.Fatal(err)
		}
		if _, err := s.finish(message); !errors.Is(err, want) {
			t.Errorf("final %q: %v, want %v", message, err, want)
		}
	}
	final(rfcFinal, nil)
	final("", ErrProtocol)
	final("c=biws,p=AAAA", ErrProtocol)
	final(strings.Replace(rfcFinal, "p=", "q=", 1), ErrProtocol)
	final(strings.Replace(rfcFinal, "p=d", "p=e", 1), ErrBadCredentials)
	final(strings.Replace(rfcFinal, "biws", "eSws", 1), ErrBadCredentials)          // another header than began
	final(strings.Replace(rfcFinal, "k0,p", "k1,p", 1), ErrBadCredentials)          // another nonce
	final(strings.Replace(rfcFinal, "r=rOpr", "r=xOpr", 1), ErrBadCredentials)      // another nonce
	final(strings.Replace(rfcFinal, ",p=", ",x=inserted,p=", 1), ErrBadCredentials) // signed without
}

// An unknown user is asked for a proof like a known one, each time with the same salt.
func TestScramUnknownUserLooksLikeAKnownOne(t *testing.T) {
	p, _ := rfc7677(t)
	begin := func(user string) string {
		s := newScram(p)
		s.nonce = "x"
		out, err := s.begin("n,,n=" + user + ",r=abc")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	a, b, c, known := begin("eve"), begin("eve"), begin("kim"), begin("user")
	if a != b || a == c || len(a) != len(known) || !strings.HasSuffix(a, "i=4096") {
		t.Errorf("\n%s\n%s\n%s\n%s", a, b, c, known)
	}
	s := newScram(p)
	s.nonce = rfcServer
	if _, err := s.begin(strings.Replace(rfcFirst, "user", "eve", 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.finish(rfcFinal); !errors.Is(err, ErrBadCredentials) {
		t.Errorf("%v", err)
	}
}

func TestExchange(t *testing.T) {
	_, k := rfc7677(t)
	c := quick("scram")
	c.Password.File = writeFile(t, "users", "user::"+k.String()+":ops\n")
	a := open(t, c, nil)
	r := request("c", "", "")
	run := func(first, final string) (Step, error) {
		t.Helper()
		x, step, err := a.Start(t.Context(), r, ScramSHA256, nil) // the client waits for the server
		if err != nil || step.Data != nil || step.Identity != nil {
			t.Fatalf("%+v, %v", step, err)
		}
		x.scram.nonce = rfcServer
		if step, err = x.Step(t.Context(), []byte(first)); err != nil || step.Identity != nil || len(step.Data) == 0 {
			t.Fatalf("%+v, %v", step, err)
		}
		step, err = x.Step(t.Context(), []byte(final))
		if _, err := x.Step(t.Context(), []byte(final)); !errors.Is(err, ErrProtocol) {
			t.Errorf("a step after the end: %v", err)
		}
		return step, err
	}
	if step, err := run(rfcFirst, rfcFinal); err != nil || step.Identity.User != "user" || step.Identity.Groups[0] != "ops" {
		t.Errorf("%+v, %v", step, err)
	}
	if _, err := run(rfcFirst, strings.Replace(rfcFinal, "p=d", "p=e", 1)); !errors.Is(err, ErrBadCredentials) {
		t.Errorf("%v", err)
	}
	if _, _, err := a.Start(t.Context(), r, "SCRAM-SHA-1", nil); !errors.Is(err, ErrBadMethod) {
		t.Errorf("%v", err)
	}
	if _, _, err := a.Start(t.Context(), r, ScramSHA256, []byte("junk")); !errors.Is(err, ErrProtocol) {
		t.Errorf("%v", err)
	}
	if err := a.Ban(Ban{User: "user"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.Start(t.Context(), r, ScramSHA256, []byte(rfcFirst)); !errors.Is(err, ErrBanned) {
		t.Errorf("%v", err)
	}
}

func TestSASLPrep(t *testing.T) {
	f := func(in, want string, ok bool) {
		t.Helper()
		if got, err := saslPrep(in); got != want || (err == nil) != ok {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	// RFC 4013, 3
	f("I\u00adX", "IX", true)
	f("user", "user", true)
	f("USER", "USER", true)
	f("\u00aa", "a", true)
	f("\u2168", "IX", true)
	f("\u0007", "", false)
	f("a\u00a0b", "a b", true)
	f("\xff", "", false)
	f("\ue000", "", false)
}

func FuzzScram(f *testing.F) {
	f.Add(rfcFirst, rfcFinal)
	f.Add("y,a=us=2Cer,n=us=2Cer,r=abc,x=y", "c=eSws,r=abc,p=AAAA")
	p, _ := rfc7677(f)
	f.Fuzz(func(t *testing.T, first, final string) {
		s := newScram(p)
		s.nonce = rfcServer
		if _, err := s.begin(first); err != nil {
			return
		}
		if _, err := s.finish(final); err == nil && (first != rfcFirst || final != rfcFinal) {
			t.Fatalf("let in by %q, %q", first, final)
		}
	})
}
