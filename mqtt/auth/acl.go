package auth

import (
	"encoding/binary"
	"math"
	"strings"
)

// Subject is who asks.
type Subject struct {
	ClientID string
	Listener string
	Identity *Identity // nil is anonymous
}

// answer is what a condition says about a subject.
type answer uint8

const (
	no answer = iota
	yes
	unknown // it names something that the subject does not have, or that may not stand there
)

// For resolves the rules for one subject. A nil ACL has no rules; then everything is allowed, or what the grants of the identity
// allow when it has some.
func (a *ACL) For(s Subject) *Permissions { return a.resolve(s, nil) }

// resolve is For; skipped is told of rules that are about the subject but could not be used.
func (a *ACL) resolve(s Subject, skipped func(r *rule, why string)) *Permissions {
	id := s.Identity
	if id == nil {
		id = &Identity{Method: MethodAnonymous}
	}
	if a == nil && id.Grants == nil {
		return everything
	}
	v := &resolver{subject: s, id: id, perms: &Permissions{connect: true}, skipped: skipped}
	if a != nil {
		v.perms.connect = !a.connectRules
		v.groups = id.Groups
		if id.User != "" {
			v.groups = append(append([]string{}, id.Groups...), a.groups[id.User]...)
		}
		for i, r := range a.rules {
			v.add(uint32(i), r)
		}
		v.perms.publish.shared, v.perms.subscribe.shared = a.shared(v.static)
	}
	if g := id.Grants; g != nil {
		v.grants(g.Publish, ActionPublish)
		v.grants(g.Subscribe, ActionSubscribe)
	}
	return v.perms
}

type resolver struct {
	subject Subject
	id      *Identity
	groups  []string
	perms   *Permissions
	static  []byte // the rules without variables that are about the subject: distances of their numbers, uvarint
	last    uint32 // in static
	skipped func(*rule, string)
}

const maxShared = 1024 // sets of rules that are held for several clients

// shared returns the lists of a set of rules without variables, made once for all clients.
func (a *ACL) shared(static []byte) (publish, subscribe *ruleList) {
	if len(static) == 0 {
		return nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if s, ok := a.sets[string(static)]; ok {
		return s[0], s[1]
	}
	var pub, sub []entry
	at := uint32(0)
	for rest := static; len(rest) > 0; {
		step, n := binary.Uvarint(rest)
		rest = rest[n:]
		at += uint32(step)
		r := a.rules[at]
		for _, f := range r.literals {
			e := entry{filter: f, deny: r.deny, qos: r.qos, retain: r.retain, rule: r, order: at}
			if r.actions&ActionPublish != 0 {
				pub = append(pub, e)
			}
			if r.actions&ActionSubscribe != 0 {
				sub = append(sub, e)
			}
		}
	}
	publish, subscribe = newRuleList(pub), newRuleList(sub)
	if len(a.sets) < maxShared {
		a.sets[string(static)] = [2]*ruleList{publish, subscribe}
	}
	return publish, subscribe
}

func (v *resolver) values(name string) []string {
	switch name {
	case "u":
		return []string{v.id.User}
	case "c":
		return []string{v.subject.ClientID}
	}
	return v.id.Claims[strings.TrimPrefix(name, claimPrefix)]
}

// add puts a rule into the permissions if it is about the subject.
func (v *resolver) add(number uint32, r *rule) {
	a := v.matches(r)
	if a == unknown && !r.deny {
		v.skip(r, "a value of its conditions is empty or not there")
	}
	if a == no || a == unknown && !r.deny {
		return
	}
	if r.actions&ActionConnect != 0 && v.perms.connectRule == nil {
		v.perms.connectRule, v.perms.connect = r, !r.deny
	}
	if r.actions&actionTopics == 0 {
		return
	}
	if len(r.literals) > 0 {
		v.static = binary.AppendUvarint(v.static, uint64(number-v.last))
		v.last = number
	}
	for _, f := range v.filters(r) {
		e := entry{filter: f, deny: r.deny, qos: r.qos, retain: r.retain, rule: r, order: number}
		if r.actions&ActionPublish != 0 {
			v.perms.publish.own = append(v.perms.publish.own, e)
		}
		if r.actions&ActionSubscribe != 0 {
			v.perms.subscribe.own = append(v.perms.subscribe.own, e)
		}
	}
}

func (v *resolver) skip(r *rule, why string) {
	if v.skipped != nil {
		v.skipped(r, why)
	}
}

// filters are the topic filters of a rule that have variables, with the values of the subject in them.
func (v *resolver) filters(r *rule) []filter {
	var out []filter
	for i := range r.topics {
		t := &r.topics[i]
		texts, ok := t.topics(v.values)
		for _, s := range texts {
			out = append(out, newFilter(s))
		}
		switch {
		case !ok && r.deny:
			f := t.widen()
			v.skip(r, "a value for "+t.text+" is empty, not there or not safe: it denies "+f.text)
			out = append(out, f)
		case !ok:
			v.skip(r, "a value for "+t.text+" is empty, not there or not safe")
		}
	}
	return out
}

// matches asks all conditions: one no is no; otherwise one unknown is unknown.
func (v *resolver) matches(r *rule) answer {
	result := yes
	conditions := []func() answer{
		func() answer { return v.named(r.users, v.id.User) },
		func() answer { return v.any(r.clients, v.subject.ClientID) },
		func() answer { return v.any(r.groups, v.groups...) },
		func() answer { return v.any(r.listeners, v.subject.Listener) },
		func() answer { return v.certificate(r.certs) },
	}
	for _, c := range r.claims {
		conditions = append(conditions, func() answer { return v.any(c.globs, v.id.Claims[c.name]...) })
	}
	for _, condition := range conditions {
		switch condition() {
		case no:
			return no
		case unknown:
			result = unknown
		}
	}
	return result
}

// any reports whether one of the values matches one of the globs. No glob is no condition.
func (v *resolver) any(globs []template, have ...string) answer {
	if len(globs) == 0 {
		return yes
	}
	result := no
	for i := range globs {
		patterns, ok := globs[i].globs(v.values)
		for _, p := range patterns {
			for _, s := range have {
				if p.match(s) {
					return yes
				}
			}
		}
		if !ok {
			result = unknown
		}
	}
	return result
}

// named is any for the user: * is every user that has a name.
func (v *resolver) named(globs []template, user string) answer {
	if user != "" || len(globs) == 0 {
		return v.any(globs, user)
	}
	result := no
	for i := range globs {
		switch {
		case globs[i].text == "":
			return yes
		case !globs[i].literal():
			result = unknown
		}
	}
	return result
}

func (v *resolver) certificate(patterns []certPattern) answer {
	if len(patterns) == 0 {
		return yes
	}
	for _, p := range patterns {
		if p.match(v.id.Certificate) {
			return yes
		}
	}
	return no
}

// grants are allowed after all rules.
func (v *resolver) grants(filters []string, action Action) {
	list := &v.perms.publish
	if action == ActionSubscribe {
		list = &v.perms.subscribe
	}
	for _, s := range filters {
		if checkFilter(s) == nil {
			list.own = append(list.own, entry{filter: newFilter(s), qos: 7, order: math.MaxUint32})
		}
	}
}
