package transport

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
)

// revocations are the lists of a crl_file by who has signed them.
type revocations struct{ lists map[issuer]*revocationList }

// issuer is a CA by name and key: a CA with a new key is another one, two certificates of one key are the same.
type issuer struct{ subject, key string }

func issuerOf(ca *x509.Certificate) issuer {
	return issuer{string(ca.RawSubject), string(ca.RawSubjectPublicKeyInfo)}
}

type revocationList struct {
	serials map[string]struct{}
	made    time.Time
	next    time.Time // when there should be another one; zero is never
}

// parseRevocations reads PEM blocks, or one list in DER. Each has to be signed by one of the CAs.
func parseRevocations(data []byte, cas []*x509.Certificate) (*revocations, error) {
	r := &revocations{lists: map[issuer]*revocationList{}}
	var raw [][]byte
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "X509 CRL" {
			return nil, fmt.Errorf("holds a %s; want revocation lists only", block.Type)
		}
		raw = append(raw, block.Bytes)
	}
	if len(raw) == 0 {
		raw = append(raw, data)
	}
	for i, der := range raw {
		if err := r.add(der, cas); err != nil {
			return nil, fmt.Errorf("list %d: %w", i+1, err)
		}
	}
	return r, nil
}

func (r *revocations) add(der []byte, cas []*x509.Certificate) error {
	crl, err := x509.ParseRevocationList(der)
	if err != nil {
		return err
	}
	if err := complete(crl); err != nil {
		return err
	}
	signer, err := signerOf(crl, cas)
	if err != nil {
		return err
	}
	l := &revocationList{serials: make(map[string]struct{}, len(crl.RevokedCertificateEntries)), made: crl.ThisUpdate, next: crl.NextUpdate}
	for _, e := range crl.RevokedCertificateEntries {
		l.serials[string(e.SerialNumber.Bytes())] = struct{}{}
	}
	if old := r.lists[issuerOf(signer)]; old == nil || old.made.Before(l.made) {
		r.lists[issuerOf(signer)] = l
	}
	return nil
}

// complete refuses lists that do not say everything about their CA, see RFC 5280, 5.2: those have critical extensions.
func complete(crl *x509.RevocationList) error {
	for _, e := range crl.Extensions {
		switch {
		case e.Id.Equal(asn1.ObjectIdentifier{2, 5, 29, 27}):
			return errors.New("is a delta list; want a complete one")
		case e.Critical:
			return fmt.Errorf("has the critical extension %v: is a partial or indirect list; want a complete one", e.Id)
		}
	}
	return nil
}

func signerOf(crl *x509.RevocationList, cas []*x509.Certificate) (*x509.Certificate, error) {
	named := false
	var bad error
	for _, ca := range cas {
		if !bytes.Equal(ca.RawSubject, crl.RawIssuer) {
			continue
		}
		named = true
		err := crl.CheckSignatureFrom(ca)
		if err == nil {
			return ca, nil
		}
		bad = err
	}
	if named {
		return nil, fmt.Errorf("signature of %s: %w", crl.Issuer, bad)
	}
	return nil, fmt.Errorf("is of %s, which is not in client_ca_file", crl.Issuer)
}

// names is an error when a list names a certificate of any chain. Of several chains one may leave a revoked CA out, because that
// is in client_ca_file itself: its revocation counts all the same. The root of a chain is nobody's to revoke.
func (r *revocations) names(chains [][]*x509.Certificate) error {
	for _, chain := range chains {
		for i := 0; i+1 < len(chain); i++ {
			l := r.lists[issuerOf(chain[i+1])]
			if l == nil {
				continue
			}
			if _, found := l.serials[string(chain[i].SerialNumber.Bytes())]; found {
				return fmt.Errorf("%w (%s, serial %x)", ErrRevoked, chain[i].Subject, chain[i].SerialNumber)
			}
		}
	}
	return nil
}

// cover verifies that there are lists to say so: one of the issuer, and none that is too old to know.
func (r *revocations) cover(chain []*x509.Certificate, now time.Time, acceptExpired bool) error {
	for i := 1; i < len(chain); i++ {
		l := r.lists[issuerOf(chain[i])]
		if l == nil && i == 1 { // of CAs further up a list is looked at when there is one
			return fmt.Errorf("%w (%s)", ErrNoRevocationList, chain[i].Subject)
		}
		if l != nil && l.expired(now) && !acceptExpired {
			return fmt.Errorf("%w (%s)", ErrRevocationListExpired, chain[i].Subject)
		}
	}
	return nil
}

// next is when the first of the lists expires; zero is never.
func (r *revocations) next() time.Time {
	var first time.Time
	for _, l := range r.lists {
		if !l.next.IsZero() && (first.IsZero() || l.next.Before(first)) {
			first = l.next
		}
	}
	return first
}

func (l *revocationList) expired(now time.Time) bool { return !l.next.IsZero() && now.After(l.next) }
