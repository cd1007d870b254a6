package auth

import (
	"fmt"
)

// Permissions are the rules about one client, ready to be asked. They are never changed; after a reload of the ACL, or when the
// identity changes, the owner asks for new ones.
//
// Publishing: the first rule whose filter matches the topic name, and whose QoS and retain fit, decides.
//
// Subscribing: a filter asks for many topics at once. The rules are walked in order, those whose QoS fits: a deny rule that
// overlaps the filter, in a single topic even, denies; an allow rule that contains the filter wholly allows; an allow rule that
// covers a part of it is passed over. So what is granted is safe: each topic that the filter can match would be allowed by its
// own first rule. Two allow rules that only together cover a filter do not grant it. $share/{name}/ is cut off before. A filter
// that starts with a wildcard does not match topics that start with $: # neither contains nor overlaps $SYS/#.
//
// Receiving: like publishing, by the rules for subscribe. It is for subscriptions that were granted under other rules.
type Permissions struct {
	open        bool // no rules at all: everything is allowed
	connect     bool
	connectRule *rule
	publish     entries
	subscribe   entries
}

// entry is a rule with one filter.
type entry struct {
	filter filter
	rule   *rule // nil: a grant of the credentials
	order  uint32
	qos    uint8
	retain retain
	deny   bool
}

// fits asks everything but the topic.
func (e *entry) fits(qos byte, retained bool) bool {
	return e.qos&(1<<qos) != 0 && (e.retain == retainAny || (e.retain == retainYes) == retained)
}

// entries are the rules for one action. Most clients share most of them: those without variables are held once for all
// clients that the same rules are about.
type entries struct {
	shared *ruleList
	own    []entry
}

// ruleList holds entries in their order.
type ruleList struct {
	entries []entry
	tree    *tree // nil when there are few
}

const treeFrom = 8 // so many entries are faster walked than looked up

func newRuleList(all []entry) *ruleList {
	l := &ruleList{entries: all}
	if len(all) >= treeFrom {
		l.tree = newTree(all)
	}
	return l
}

// first returns the entry that decides about a topic; nil when none does.
func (l *ruleList) first(topic string, qos byte, retained bool) *entry {
	if l == nil {
		return nil
	}
	if l.tree != nil {
		if i := l.tree.first(l.entries, topic, qos, retained); i < none {
			return &l.entries[i]
		}
		return nil
	}
	return walk(l.entries, topic, qos, retained)
}

func walk(all []entry, topic string, qos byte, retained bool) *entry {
	for i := range all {
		if e := &all[i]; e.fits(qos, retained) && e.filter.match(topic) {
			return e
		}
	}
	return nil
}

// first returns the entry that decides about a topic; nil when none does.
func (l *entries) first(topic string, qos byte, retained bool) *entry {
	return earlier(l.shared.first(topic, qos, retained), walk(l.own, topic, qos, retained))
}

// firstFilter is first for a topic filter.
func (l *entries) firstFilter(f string, qos byte) *entry {
	find := func(all []entry) *entry {
		for i := range all {
			e := &all[i]
			switch {
			case e.qos&(1<<qos) == 0:
			case e.deny && e.filter.overlaps(f), !e.deny && e.filter.contains(f):
				return e
			}
		}
		return nil
	}
	var shared *entry
	if l.shared != nil {
		shared = find(l.shared.entries)
	}
	return earlier(shared, find(l.own))
}

func earlier(a, b *entry) *entry {
	if a == nil || b != nil && b.order < a.order {
		return b
	}
	return a
}

// Ruled reports whether there are rules at all.
func (p *Permissions) Ruled() bool { return !p.open }

// Connect reports whether the client may connect.
func (p *Permissions) Connect() bool { return p.connect }

// Publish reports whether a PUBLISH is allowed.
func (p *Permissions) Publish(topic string, qos byte, retain bool) bool {
	if p.open {
		return true
	}
	e := p.publish.first(topic, qos, retain)
	return e != nil && !e.deny
}

// Subscribe reports whether a subscription is allowed; the filter may have $share/{name}/ in front.
func (p *Permissions) Subscribe(filter string, qos byte) bool {
	if p.open {
		return true
	}
	e := p.subscribe.firstFilter(WithoutShare(filter), qos)
	return e != nil && !e.deny
}

// Receive reports whether a message may be delivered at the given QoS: whether a subscription of that QoS or a higher one, which
// is what may bring it, would be allowed.
func (p *Permissions) Receive(topic string, qos byte) bool {
	if p.open {
		return true
	}
	for ; qos <= 2; qos++ {
		if e := p.subscribe.first(topic, qos, false); e != nil && !e.deny {
			return true
		}
	}
	return false
}

// everything is what a client may do without an ACL.
var everything = &Permissions{open: true, connect: true}

// Question is what Explain is asked.
type Question struct {
	Subject Subject
	Action  Action
	Topic   string // topic name to publish to, or topic filter to subscribe to
	QoS     byte
	Retain  bool
}

// Decision is an answer with its reason.
type Decision struct {
	Allowed bool
	File    string   // of the rule that decided; empty when none did
	Line    int      // of that rule
	Rule    string   // the rule
	Why     string   // in words
	Skipped []string // rules about the subject that could not be used as they stand, and why
}

// Explain answers like Permissions do, and says which rule decided.
func (a *ACL) Explain(q Question) Decision {
	var d Decision
	p := a.resolve(q.Subject, func(r *rule, why string) {
		d.Skipped = append(d.Skipped, fmt.Sprintf("%s:%d: %s", r.file, r.line, why))
	})
	var e *entry
	switch {
	case q.Action == ActionConnect:
		d.Allowed = p.connect
		if p.connectRule != nil {
			e = &entry{rule: p.connectRule, deny: p.connectRule.deny}
		}
	case q.Action == ActionSubscribe:
		d.Allowed = p.Subscribe(q.Topic, q.QoS)
		e = p.subscribe.firstFilter(WithoutShare(q.Topic), q.QoS)
	default:
		d.Allowed = p.Publish(q.Topic, q.QoS, q.Retain)
		e = p.publish.first(q.Topic, q.QoS, q.Retain)
	}
	switch {
	case e != nil && e.rule != nil:
		d.File, d.Line, d.Rule = e.rule.file, e.rule.line, e.rule.text
		d.Why = "the first rule that matches"
		if q.Action != ActionConnect && e.filter.text != "" {
			d.Why += ", as " + e.filter.text
		}
	case e != nil:
		d.Rule = e.filter.text
		d.Why = "granted by the credentials"
	case q.Action == ActionConnect && d.Allowed:
		d.Why = "no rule denies it, and no rule allows connect by name"
	case q.Action == ActionConnect:
		d.Why = "no rule matches, and there are rules that allow connect by name"
	case p.open:
		d.Why = "there is no ACL"
	case q.Action == ActionSubscribe:
		d.Why = "no rule contains the filter: what no rule allows is denied"
	default:
		d.Why = "no rule matches: what no rule allows is denied"
	}
	return d
}
