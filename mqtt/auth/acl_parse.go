package auth

import (
	"errors"
	"fmt"
	"strings"
	"sync"
)

// Action is what a client does.
type Action uint8

// The actions of rules; a request has one of them.
const (
	ActionConnect Action = 1 << iota
	ActionPublish
	ActionSubscribe

	actionTopics = ActionPublish | ActionSubscribe
	actionAll    = ActionConnect | actionTopics
)

// String implements fmt.Stringer.
func (a Action) String() string {
	switch a {
	case ActionConnect:
		return "connect"
	case ActionPublish:
		return "publish"
	case ActionSubscribe:
		return "subscribe"
	}
	return fmt.Sprintf("action %d", uint8(a))
}

// ParseAction reads connect, publish or subscribe.
func ParseAction(s string) (Action, error) {
	for _, a := range []Action{ActionConnect, ActionPublish, ActionSubscribe} {
		if s == a.String() {
			return a, nil
		}
	}
	return 0, fmt.Errorf("action %q is not known: want connect, publish or subscribe", s)
}

// ACL is a list of rules, read from a file. It is never changed, but for what it remembers.
type ACL struct {
	rules  []*rule
	groups map[string][]string // of users, by the group lines

	// connectRules says that a rule allows to connect by name; then nobody connects without such a rule.
	connectRules bool

	mu   sync.Mutex
	sets map[string][2]*ruleList // publish and subscribe, see shared
}

// rule is one line.
type rule struct {
	file    string
	line    int
	text    string
	deny    bool
	actions Action
	topics  []template // with variables

	// literals are the filters without variables. A rule without any topic is about every one, those with $ too.
	literals []filter

	users, clients, groups, listeners []template
	certs                             []certPattern
	claims                            []claimPattern

	qos    uint8 // bit 1<<QoS
	retain retain
}

type retain uint8

const (
	retainAny retain = iota
	retainYes
	retainNo
)

type certPattern struct {
	kind string // cn, dns, uri, email, sha256, or "*" for any certificate
	glob pattern
}

type claimPattern struct {
	name  string
	globs []template // any of them
}

// ParseACL reads an ACL; file is what errors call it. A line is a rule
//
//	allow|deny ACTIONS [KEY=VALUE ...]
//
// or the members of a group
//
//	group NAME USER ...
//
// ACTIONS are connect, publish, subscribe, joined by commas, or all. A key that stands more than once may have any of its
// values; all keys that stand there must match. In the values of user, client, group, listener and claims * stands for any run
// of characters and ? for one; %u, %c and %{claim} stand for the user, the client ID and a claim. Words with spaces stand in
// double quotes; # at the start of a word begins a comment.
//
//	topic=FILTER     topic filter; without one the rule is about every topic, those that start with $ too
//	user=GLOB        user name; never matches a client without one, but user="" does
//	client=GLOB      client ID
//	group=GLOB       a group of the user, by a group line, the password file, a token or the hook
//	cert=KIND:GLOB   verified certificate; KIND is cn, dns, uri, email or sha256; cert=* is any
//	claim.NAME=GLOB  a claim of the token or the hook; of a list, one
//	listener=GLOB    name of the listener
//	qos=0,1,2        QoS of the publish, or of the subscription asked for
//	retain=yes|no    of the publish
//
// The first rule that matches decides. What no rule decides is denied; only connecting is allowed as long as no rule allows
// connect by name.
func ParseACL(file string, data []byte) (*ACL, error) {
	a := &ACL{groups: map[string][]string{}, sets: map[string][2]*ruleList{}}
	err := eachLine(file, data, func(line int, text string) error {
		words, err := splitWords(text)
		if err != nil || len(words) == 0 {
			return err
		}
		switch words[0] {
		case "group":
			return a.group(words[1:])
		case "allow", "deny":
			r := &rule{file: file, line: line, text: strings.TrimSpace(text), deny: words[0] == "deny", qos: 7}
			if err := r.parse(words[1:]); err != nil {
				return err
			}
			named := words[1] != "all"
			a.connectRules = a.connectRules || !r.deny && named && r.actions&ActionConnect != 0
			a.rules = append(a.rules, r)
			return nil
		}
		return fmt.Errorf("%q: a line starts with allow, deny or group", words[0])
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

func (a *ACL) group(words []string) error {
	if len(words) < 2 || words[0] == "" {
		return errors.New("want a name and users: group NAME USER USER")
	}
	for _, user := range words[1:] {
		if user == "" {
			return errors.New("group: a user name is empty")
		}
		a.groups[user] = append(a.groups[user], words[0])
	}
	return nil
}

func (r *rule) parse(words []string) error {
	if len(words) == 0 {
		return errors.New("want: allow or deny, actions, and what they are about")
	}
	if strings.Contains(words[0], "=") {
		return fmt.Errorf("%q stands where the actions are wanted: connect, publish, subscribe or all", words[0])
	}
	for name := range strings.SplitSeq(words[0], ",") {
		if name == "all" {
			r.actions |= actionAll
			continue
		}
		action, err := ParseAction(name)
		if err != nil {
			return fmt.Errorf("%w, or all", err)
		}
		r.actions |= action
	}
	seen := map[string]bool{}
	for _, word := range words[1:] {
		key, value, ok := strings.Cut(word, "=")
		if !ok {
			return fmt.Errorf("%q: want key=value", word)
		}
		if err := r.key(key, value); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		if seen[key] && (key == "qos" || key == "retain") {
			return fmt.Errorf("%s stands twice", key)
		}
		seen[key] = true
	}
	switch {
	case seen["topic"] && r.actions&actionTopics == 0:
		return errors.New("topic: connect has none")
	case seen["qos"] && r.actions&actionTopics == 0:
		return errors.New("qos: connect has none")
	case seen["retain"] && r.actions != ActionPublish:
		return errors.New("retain: only a rule for publish alone has it")
	}
	if seen["topic"] || seen["qos"] {
		r.actions &= actionTopics // all with a topic is about topics
	}
	if !seen["topic"] {
		r.literals = []filter{{text: "(everything)", all: true}}
	}
	return nil
}

func (r *rule) key(key, value string) error {
	if name, ok := strings.CutPrefix(key, "claim."); ok {
		t, err := parseTemplate(value)
		if err != nil {
			return err
		}
		if name == "" {
			return errors.New("want claim.NAME=GLOB")
		}
		for i := range r.claims {
			if r.claims[i].name == name {
				r.claims[i].globs = append(r.claims[i].globs, t)
				return nil
			}
		}
		r.claims = append(r.claims, claimPattern{name: name, globs: []template{t}})
		return nil
	}
	add := func(list *[]template, parse func(string) (template, error)) error {
		t, err := parse(value)
		*list = append(*list, t)
		return err
	}
	switch key {
	case "topic":
		t, err := parseTopic(value)
		switch {
		case err != nil:
			return err
		case t.literal():
			r.literals = append(r.literals, newFilter(t.plain()))
		default:
			r.topics = append(r.topics, t)
		}
		return nil
	case "user":
		return add(&r.users, parseTemplate)
	case "client":
		return add(&r.clients, parseTemplate)
	case "group":
		return add(&r.groups, parseTemplate)
	case "listener":
		return add(&r.listeners, parseTemplate)
	case "cert":
		return r.cert(value)
	case "qos":
		r.qos = 0
		for q := range strings.SplitSeq(value, ",") {
			if len(q) != 1 || q[0] < '0' || q[0] > '2' {
				return fmt.Errorf("%q: want 0, 1 or 2, joined by commas", value)
			}
			r.qos |= 1 << (q[0] - '0')
		}
		return nil
	case "retain":
		switch value {
		case "yes":
			r.retain = retainYes
		case "no":
			r.retain = retainNo
		default:
			return fmt.Errorf("%q: want yes or no", value)
		}
		return nil
	}
	return errors.New("key is not known; there are topic, user, client, group, cert, claim.NAME, listener, qos and retain")
}

func (r *rule) cert(value string) error {
	if value == "*" {
		r.certs = append(r.certs, certPattern{kind: "*"})
		return nil
	}
	kind, glob, ok := strings.Cut(value, ":")
	if !ok || glob == "" {
		return fmt.Errorf("%q: want cn:, dns:, uri:, email: or sha256: and a glob, or * for any certificate", value)
	}
	switch kind {
	case "cn", "dns", "uri", "email":
	case "sha256":
		glob = strings.ToLower(strings.ReplaceAll(glob, ":", ""))
	default:
		return fmt.Errorf("%q is not known: want cn, dns, uri, email or sha256", kind)
	}
	r.certs = append(r.certs, certPattern{kind: kind, glob: pattern(glob)})
	return nil
}

func (p certPattern) match(c *CertificateInfo) bool {
	if c == nil {
		return false
	}
	any := func(list []string) bool {
		for _, s := range list {
			if p.glob.match(s) {
				return true
			}
		}
		return false
	}
	switch p.kind {
	case "*":
		return true
	case "cn":
		return p.glob.match(c.CommonName)
	case "dns":
		return any(c.DNS)
	case "uri":
		return any(c.URIs)
	case "email":
		return any(c.Emails)
	}
	return p.glob.match(c.Fingerprint)
}
