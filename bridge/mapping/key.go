package mapping

import (
	"fmt"
	"strings"

	"github.com/forebay-gateway/forebay/spool"
)

// keySource says where a record's key comes from.
type keySource struct {
	kind     keyKind
	level    int
	template *template
}

type keyKind uint8

const (
	keyClient keyKind = iota
	keyTopic
	keyLevel
	keyNone
	keyTemplate
)

func parseKey(s string) (keySource, error) {
	switch {
	case s == KeyClientID:
		return keySource{kind: keyClient}, nil
	case s == KeyTopic:
		return keySource{kind: keyTopic}, nil
	case s == KeyNone:
		return keySource{kind: keyNone}, nil
	case strings.HasPrefix(s, "topic[") && strings.HasSuffix(s, "]"):
		f, n, err := parseField(s)
		if err == nil && n < len(s) {
			err = fmt.Errorf("%q behind %s", s[n:], s[:n])
		}
		return keySource{kind: keyLevel, level: f.level}, err
	case strings.Contains(s, "${"):
		t, err := parseTemplate(s)
		if err == nil && t.vars == 0 {
			err = fmt.Errorf("%q has no field: all records would go to one partition", s)
		}
		return keySource{kind: keyTemplate, template: t}, err
	}
	return keySource{}, fmt.Errorf("%q is none of client_id, topic, topic[N], none, or a template such as ${json.line}", s)
}

// decide sets the key of a record whose mapping has no key template. A topic that has no such level falls back to the client ID,
// so that the record still has a place and a key. Without a key the client ID decides the partition, so that order holds.
func (k *keySource) decide(d *Decision, rec *spool.Record) {
	d.key, d.NoKey, d.Key = k.kind, k.kind == keyNone, rec.ClientID
	switch k.kind {
	case keyTopic:
		d.Key = rec.Topic
	case keyLevel:
		if level, ok := topicLevel(rec.Topic, k.level); ok {
			d.Key = level
		}
	}
}

// render is decide for every key. What the policy lets pass has the client ID as its key.
func (k *keySource) render(d *Decision, s *Scratch) error {
	k.decide(d, s.rec)
	if k.template == nil {
		return nil
	}
	d.key = keyClient
	b, missing, err := k.template.appendTo(s.buf[:0], s)
	s.buf = b
	switch {
	case err != nil:
		return err
	case missing != nil:
		return missed(missing)
	}
	d.key, d.Key = keyTemplate, string(b)
	return nil
}
