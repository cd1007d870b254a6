package auth

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func parse(t testing.TB, text string) *ACL {
	t.Helper()
	a, err := ParseACL("acl", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestACLFirstMatchDecides(t *testing.T) {
	a := parse(t, `
# what everybody may
group operators  ann bob
deny  publish topic=alarm/# retain=yes
allow publish topic=alarm/%u/# user=*
allow publish topic=dev/%c/up qos=0,1
allow subscribe topic=dev/%c/down
allow all topic=# group=operators
allow all topic=$SYS/# user=ann
allow subscribe topic=site/%{site}/# claim.role=view*
deny  subscribe topic=secret/#
allow subscribe topic=+/public/#
allow publish topic=gw/# cert=dns:*.plant.example
allow publish topic=inside/# listener=inner
`)
	who := func(user, client string, more ...func(*Subject)) *Permissions {
		s := Subject{ClientID: client, Identity: &Identity{User: user}}
		for _, m := range more {
			m(&s)
		}
		return a.For(s)
	}
	publish := func(p *Permissions, topic string, qos byte, retain, want bool) {
		t.Helper()
		if got := p.Publish(topic, qos, retain); got != want {
			t.Errorf("publish %s QoS %d retain %v: %v", topic, qos, retain, got)
		}
	}
	subscribe := func(p *Permissions, filter string, want bool) {
		t.Helper()
		if got := p.Subscribe(filter, 1); got != want {
			t.Errorf("subscribe %s: %v", filter, got)
		}
	}
	eve, ann := who("eve", "c1"), who("ann", "c2")
	publish(eve, "alarm/eve/1", 0, false, true)
	publish(eve, "alarm/eve/1", 0, true, false)
	publish(eve, "alarm/ann/1", 0, false, false)
	publish(eve, "dev/c1/up", 1, false, true)
	publish(eve, "dev/c1/up", 2, false, false) // QoS does not fit
	publish(eve, "dev/c2/up", 1, false, false)
	publish(ann, "anything", 2, true, true)
	publish(ann, "alarm/x", 2, true, false) // the first rule
	publish(ann, "$SYS/x", 0, false, true)
	publish(who("bob", "x"), "$SYS/x", 0, false, false) // # does not see $
	publish(who("", "c1"), "alarm//1", 0, false, false)
	publish(who("", "c1"), "inside/1", 0, false, false)
	publish(who("", "c1", func(s *Subject) { s.Listener = "inner" }), "inside/1", 0, false, true)
	publish(who("", "c1", func(s *Subject) {
		s.Identity.Certificate = &CertificateInfo{DNS: []string{"x", "m1.plant.example"}}
	}), "gw/1", 0, false, true)

	subscribe(eve, "dev/c1/down", true)
	subscribe(eve, "dev/+/down", false)
	subscribe(eve, "$share/g/dev/c1/down", true)
	subscribe(eve, "x/public/y", true)
	subscribe(eve, "+/public/#", false) // secret/public is among them
	subscribe(eve, "secret/public/y", false)
	subscribe(eve, "#", false)
	subscribe(eve, "+/+/x", false)
	subscribe(ann, "#", true)
	subscribe(ann, "$SYS/#", true)
	subscribe(who("bob", "x"), "$SYS/#", false)
	viewer := who("kim", "x", func(s *Subject) {
		s.Identity.Claims = map[string][]string{"role": {"viewer"}, "site": {"north", "south"}}
	})
	subscribe(viewer, "site/north/#", true)
	subscribe(viewer, "site/south/a", true)
	subscribe(viewer, "site/east/a", false)
	subscribe(viewer, "site/#", false)
	subscribe(viewer, "site/+/a", false)
}

// The semantics of a filter that asks for many topics.
func TestACLSubscribeIsGrantedWhollyOrNot(t *testing.T) {
	f := func(rules, filter string, want bool) {
		t.Helper()
		p := parse(t, rules).For(Subject{ClientID: "c", Identity: &Identity{User: "u"}})
		if got := p.Subscribe(filter, 0); got != want {
			t.Errorf("%q subscribe %s: %v", rules, filter, got)
		}
	}
	f("allow subscribe topic=a/#", "a/b", true)
	f("allow subscribe topic=a/#", "a/+/c", true)
	f("allow subscribe topic=a/#", "a/#", true)
	f("allow subscribe topic=a/#", "a", true)
	f("allow subscribe topic=a/#", "+/b", false)
	f("allow subscribe topic=a/+", "a/#", false)
	f("allow subscribe topic=a/+", "a/+", true)
	f("allow subscribe topic=+/#", "#", true)
	f("allow subscribe topic=#", "+/#", true)
	f("allow subscribe topic=#", "$SYS/#", false)
	f("allow subscribe", "$SYS/#", true) // no topic: every topic
	f("deny subscribe topic=a/x\nallow subscribe topic=a/#", "a/y", true)
	f("deny subscribe topic=a/x\nallow subscribe topic=a/#", "a/+", false) // one of its topics is denied
	f("deny subscribe topic=a/x\nallow subscribe topic=a/#", "a/#", false)
	f("deny subscribe topic=a/+/z\nallow subscribe topic=a/#", "a/y/+", false)
	f("allow subscribe topic=a/#\ndeny subscribe topic=a/x", "a/#", true) // the first rule has decided for each
	f("deny subscribe topic=#\nallow subscribe topic=$SYS/#", "$SYS/a", true)
	f("deny subscribe\nallow subscribe topic=$SYS/#", "$SYS/a", false)
	f("allow subscribe topic=a/b\nallow subscribe topic=a/+", "a/+", true)
	f("allow subscribe topic=a\nallow subscribe topic=a/+/#", "a/#", false) // only both together
	f("deny subscribe topic=a/# qos=1,2\nallow subscribe topic=a/#", "a/b", true)
	f("deny publish topic=a/#\nallow subscribe topic=a/#", "a/b", true)
	f("allow subscribe topic=a/#", "$share/g/a/b", true)
	f("allow subscribe topic=#", "$share/g/$SYS/b", false)
}

// What is granted must be safe: every topic that the filter matches is allowed by its own first rule.
func TestACLSubscribeNeverGrantsMoreThanReceive(t *testing.T) {
	filters := []string{"a", "a/#", "a/+", "+/a", "+", "#", "a/b", "+/#", "$s/#", "$s/a", "+/+/a"}
	topics := append(universe("a", "b", "$s"), "c", "a/c", "c/a", "$t/a")
	verbs := []string{"allow", "deny"}
	n := 0
	for _, f1 := range filters {
		for _, f2 := range filters {
			for v := range 4 {
				rules := verbs[v&1] + " subscribe topic=" + f1 + "\n" + verbs[v>>1] + " subscribe topic=" + f2 + "\nallow subscribe topic=b/#\n"
				p := parse(t, rules).For(Subject{})
				for _, want := range filters {
					if !p.Subscribe(want, 0) {
						continue
					}
					nf := newFilter(want)
					for _, topic := range topics {
						if nf.match(topic) && !p.Receive(topic, 0) {
							t.Fatalf("%q grants %s, but denies %s", rules, want, topic)
						}
						n++
					}
				}
			}
		}
	}
	if n == 0 {
		t.Fatal("nothing was compared")
	}
}

// A value that is not safe: an allow rule does not match, a deny rule denies all that it could have meant.
func TestACLSubstitutionNeverWidens(t *testing.T) {
	f := func(rules, client, topic string, want bool) {
		t.Helper()
		p := parse(t, rules).For(Subject{ClientID: client})
		if got := p.Publish(topic, 0, false); got != want {
			t.Errorf("%q client %q publish %s: %v", rules, client, topic, got)
		}
		if got := p.Receive(topic, 0); got != want {
			t.Errorf("%q client %q receive %s: %v", rules, client, topic, got)
		}
	}
	const allow, deny = "allow all topic=d/%c/#", "deny all topic=d/%c/x\nallow all"
	f(allow, "c1", "d/c1/x", true)
	for _, bad := range []string{"+", "#", "a/b", "a+", "", "\x00", "c1/#"} {
		f(allow, bad, "d/c1/x", false)
		f(allow, bad, "d/a/b/x", false)
		f(allow, bad, "d/"+bad+"/x", false)
		f(deny, bad, "d/c1/x", false) // all of d/#
		f(deny, bad, "d/other", false)
		f(deny, bad, "e", true) // it could not have meant this
		f("deny all topic=%c/x\nallow all", bad, "e", false)
		f("deny all topic=%c/x\nallow all", bad, "$SYS/x", false)
		f("deny all topic=pre-%c/x\nallow all", bad, "e", false)
	}
	f("allow all topic=%c/#", "$SYS", "$SYS/x", false) // a client ID must not lead into $ topics
	f("deny all topic=%c/#\nallow all", "$SYS", "$SYS/x", false)
	f("allow all topic=$SYS/%c/#", "c", "$SYS/c/x", true)
	f("allow all topic=d/%%c", "c", "d/%c", true)
	f("allow all topic=d/%{site}", "c", "d/", false)
	f("deny all topic=d/%{site}\nallow all", "c", "d/x", false)
	f("allow all topic=d/# client=%u", "c", "d/x", false) // no user: cannot be compared
	f("deny all topic=d/# client=%u\nallow all", "c", "d/x", false)
	f("deny all topic=d/# client=%u listener=other\nallow all", "c", "d/x", true) // another condition says no
	f("allow all topic=d/# claim.role=*", "c", "d/x", false)
	f("deny all topic=d/# claim.role=*\nallow all", "c", "d/x", true) // it has no role: a plain no

	// A user called * is not every client.
	p := parse(t, "allow all topic=# client=%u").For(Subject{ClientID: "c", Identity: &Identity{User: "*"}})
	if p.Publish("a", 0, false) {
		t.Error("a user name was taken for a glob")
	}
}

// Long lists are looked up in a tree, short ones walked: both must find the same rule.
func TestACLTreeFindsTheFirstRule(t *testing.T) {
	filters := []string{"a", "a/#", "a/+", "+/a", "+", "#", "a/b", "+/#", "$s/#", "$s/a", "+/+/a", "a/+/#", "/+", "a//b", "a/b/c", "$s/+/#"}
	topics := append(universe("a", "b", "", "$s"), "a/b/c", "a/b/c/d", "c")
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var list []entry
		for range 30 {
			f := newFilter(filters[rnd.IntN(len(filters))])
			if rnd.IntN(40) == 0 {
				f = filter{all: true}
			}
			list = append(list, entry{filter: f, qos: uint8(rnd.IntN(8)), retain: retain(rnd.IntN(3))})
		}
		long := newRuleList(list)
		for _, topic := range topics {
			qos, retain := byte(rnd.IntN(3)), rnd.IntN(2) == 0
			if a, b := walk(list, topic, qos, retain), long.first(topic, qos, retain); a != b {
				t.Fatalf("topic %q: walked %+v, looked up %+v", topic, a, b)
			}
		}
	}
}

// Many clients with the same rules hold them once.
func TestACLClientsShareRules(t *testing.T) {
	a := parse(t, strings.Repeat("allow all topic=a/b/c\n", 100)+"allow all topic=d/%c\ndeny all topic=e user=eve\nallow all topic=e\n")
	one, two := a.For(Subject{ClientID: "1"}), a.For(Subject{ClientID: "2"})
	eve := a.For(Subject{ClientID: "3", Identity: &Identity{User: "eve"}})
	if one.publish.shared != two.publish.shared || one.publish.shared == eve.publish.shared || len(one.publish.own) != 1 {
		t.Error("not shared as it should be")
	}
	for p, client := range map[*Permissions]string{one: "1", two: "2", eve: "3"} {
		if !p.Publish("d/"+client, 0, false) || p.Publish("d/x", 0, false) || !p.Receive("a/b/c", 0) || p.Publish("e", 0, false) == (p == eve) {
			t.Errorf("client %s", client)
		}
	}
}

func TestACLReceiveFollowsTheQoSOfSubscriptions(t *testing.T) {
	p := parse(t, "allow subscribe topic=a qos=1\ndeny subscribe topic=b qos=2\nallow subscribe topic=b\ndeny subscribe topic=c qos=1,2\nallow subscribe topic=c").For(Subject{})
	f := func(topic string, qos byte, want bool) {
		t.Helper()
		if got := p.Receive(topic, qos); got != want {
			t.Errorf("%s QoS %d: %v", topic, qos, got)
		}
	}
	f("a", 0, true) // a subscription of QoS 1 brings messages of QoS 0
	f("a", 1, true)
	f("a", 2, false)
	f("b", 1, true)
	f("b", 2, false)
	f("c", 0, true)
	f("c", 1, false)
}

func TestACLConnect(t *testing.T) {
	f := func(rules, user string, want bool) {
		t.Helper()
		if got := parse(t, rules).For(Subject{Identity: &Identity{User: user}}).Connect(); got != want {
			t.Errorf("%q user %q: %v", rules, user, got)
		}
	}
	f("allow publish topic=a", "u", true)
	f("deny connect user=eve", "eve", false)
	f("deny connect user=eve", "u", true)
	f("deny all user=eve", "eve", false)
	f("deny all topic=# user=eve", "eve", true) // about topics
	f("allow connect user=u", "u", true)
	f("allow connect user=u", "eve", false)
	f("allow connect user=*", "", false)
	f(`allow connect user=""`, "", true)
	f("allow all user=admin", "u", true)
}

func TestACLGrantsFollowTheRules(t *testing.T) {
	id := &Identity{User: "u", Grants: &Grants{Publish: []string{"a/#", "b"}, Subscribe: []string{"$share/g/x", "c/+"}}}
	p := parse(t, "deny publish topic=a/x").For(Subject{Identity: id})
	if !p.Publish("a/y", 0, false) || !p.Publish("b", 2, true) || p.Publish("a/x", 0, false) || p.Publish("c", 0, false) {
		t.Error("publish")
	}
	if !p.Subscribe("c/d", 1) || p.Subscribe("x", 0) {
		t.Error("subscribe")
	}
	var none *ACL
	if p := none.For(Subject{Identity: id}); !p.Publish("a/x", 0, false) || p.Publish("c", 0, false) {
		t.Error("grants without an ACL file are all that is allowed")
	}
	if p := none.For(Subject{Identity: &Identity{}}); !p.Publish("x", 0, false) || !p.Subscribe("#", 0) || !p.Connect() {
		t.Error("no ACL allows everything")
	}
}

func TestACLFaultsNameTheLine(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		_, err := ParseACL("acl", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
	f("permit all", `acl:1: "permit": a line starts with allow, deny or group`)
	f("\n# x\nallow", "acl:3: want: allow or deny, actions")
	f("allow topic=a", "stands where the actions are wanted")
	f("allow read topic=a", `action "read" is not known`)
	f("allow publish a/b", `"a/b": want key=value`)
	f("allow publish topik=a", "topik: key is not known; there are topic")
	f("allow publish topic=a#", "stand alone in their level")
	f("allow publish topic=+%c", "stand alone in their level")
	f("allow publish topic=#/a", "stand alone in their level")
	f("allow publish topic=", "topic filter is empty")
	f("allow publish topic=$share/g/a", "without $share/{name}/")
	f("allow publish topic=a/%x", "%x is not known")
	f("allow publish topic=a/%", "a % at the end")
	f("allow publish topic=a/%{x", "without a name and }")
	f(`allow publish topic="a b`, "a quote is not closed")
	f("allow publish qos=3 topic=a", "want 0, 1 or 2")
	f("allow publish qos=1 qos=2 topic=a", "qos stands twice")
	f("allow all retain=yes topic=a", "only a rule for publish alone")
	f("allow connect topic=a", "connect has none")
	f("allow publish retain=true topic=a", "want yes or no")
	f("allow publish cert=plant topic=a", "want cn:, dns:")
	f("allow publish cert=ou:x topic=a", `"ou" is not known`)
	f("group g", "want a name and users")
	f("allow publish topic=\xff", "line is not text")
	f("deny all\nx\ny", "acl:3: ")
}

func TestACLExplainNamesTheRule(t *testing.T) {
	a := parse(t, "allow publish topic=d/%c/#\n\ndeny all topic=d/%{site}/#  # no\nallow subscribe topic=#\nallow connect user=u")
	f := func(client string, action Action, topic string, allowed bool, line int, why string, skipped int) {
		t.Helper()
		d := a.Explain(Question{Subject: Subject{ClientID: client, Identity: &Identity{User: "u"}}, Action: action, Topic: topic})
		if d.Allowed != allowed || d.Line != line || !strings.Contains(d.Why, why) || len(d.Skipped) != skipped {
			t.Errorf("client %s %v %s: %+v", client, action, topic, d)
		}
	}
	f("c", ActionPublish, "d/c/1", true, 1, "as d/c/#", 1)
	f("c", ActionPublish, "d/e/1", false, 3, "as d/#", 1)
	f("c", ActionPublish, "e", false, 0, "no rule matches", 1)
	f("+", ActionPublish, "d/+/1", false, 3, "as d/#", 2)
	f("c", ActionSubscribe, "x/#", true, 4, "as #", 1)
	f("c", ActionSubscribe, "#", false, 3, "as d/#", 1)
	f("c", ActionSubscribe, "$SYS/#", false, 0, "no rule contains the filter", 1)
	f("c", ActionConnect, "", true, 5, "the first rule", 1)
	var none *ACL
	if d := none.Explain(Question{Action: ActionPublish, Topic: "a"}); !d.Allowed || d.Why != "there is no ACL" {
		t.Errorf("%+v", d)
	}
}

func FuzzParseACL(f *testing.F) {
	f.Add("allow publish topic=d/%c/# user=* qos=0,1 retain=yes", "c", "u", "d/c/x", "d/+/x")
	f.Add("group g u\ndeny all topic=%{x}/# group=g\nallow all client=%u*", "$SYS", "+", "a/b", "#")
	f.Add(`allow subscribe topic="a b/#" cert=dns:* claim.r="x\"y"`, "", "", "a b", "$share/g/a")
	f.Fuzz(func(t *testing.T, text, client, user, topic, want string) {
		a, err := ParseACL("f", []byte(text))
		if err != nil {
			return
		}
		s := Subject{ClientID: client, Identity: &Identity{User: user, Claims: map[string][]string{"x": {client, user}}}}
		p := a.For(s)
		if got := a.Explain(Question{Subject: s, Action: ActionPublish, Topic: topic}); got.Allowed != p.Publish(topic, 0, false) {
			t.Fatalf("explain says %+v", got)
		}
		if checkFilter(topic) == nil && checkFilter(want) == nil && !strings.ContainsAny(topic, "+#") {
			nf := newFilter(want)
			if p.Subscribe(want, 0) && nf.match(topic) && !p.Receive(topic, 0) {
				t.Fatalf("granted %q, denied %q", want, topic)
			}
		}
	})
}

func BenchmarkPublish100Rules(b *testing.B) {
	var text strings.Builder
	for i := range 100 {
		text.WriteString([]string{
			"allow publish topic=site/area%d/+/state\n", "deny publish topic=site/area%d/secret/#\n",
			"allow publish topic=plant%d/%c/#\n",
		}[i%3])
	}
	rules := strings.ReplaceAll(text.String(), "%d", "7")
	p := parse(b, rules+"allow publish topic=site/%c/#\n").For(Subject{ClientID: "c1"}) // its first third is own rules
	b.ReportAllocs()
	for b.Loop() {
		if !p.Publish("site/c1/line/temp", 1, false) {
			b.Fatal("denied")
		}
	}
}
