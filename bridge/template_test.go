package bridge

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/bridge/kafka"
)

func TestTemplateRenders(t *testing.T) {
	f := func(tmpl, topic, client, want string) {
		t.Helper()
		p, err := parseTemplate(tmpl)
		if err != nil {
			t.Fatal(err)
		}
		got := p.render(topic, client)
		if strings.HasSuffix(want, "*") {
			base := strings.TrimSuffix(want, "*")
			if !strings.HasPrefix(got, base+"-") || len(got) != len(base)+1+hashLen {
				t.Errorf("%s of %q = %s, want %s and a hash", tmpl, topic, got, base)
			}
		} else if got != want {
			t.Errorf("%s of %q = %s, want %s", tmpl, topic, got, want)
		}
		if !kafka.ValidTopic(got) {
			t.Errorf("%s of %q = %q: not a Kafka topic", tmpl, topic, got)
		}
	}
	f("telemetry", "a/b", "c", "telemetry")
	f("telemetry.${topic[1]}", "plant/7/temp", "c", "telemetry.7")
	f("telemetry.${topic[0]}", "plant_1/x", "c", "telemetry.plant_1") // one level: _ stays
	f("${topic}", "a/b/c", "c", "a.b.c")
	f("d.${client_id}", "a", "pump-7", "d.pump-7")
	f("${topic[0]}.${topic[1]}", "a/b", "c", "a.b")
	f("${topic[0]}-x_${topic[1]}", "a/b", "c", "a-x_b")

	f("telemetry.${topic[1]}", "plant", "c", "telemetry.*")            // no such level
	f("telemetry.${topic[1]}", "plant//x", "c", "telemetry.*")         // an empty one
	f("telemetry.${topic[1]}", "a/b.c", "c", "telemetry.b_c*")         // . and _ are the same to Kafka
	f("telemetry.${topic[1]}", "a/b c", "c", "telemetry.b_c*")         // not legal
	f("telemetry.${topic[1]}", "a/é", "c", "telemetry.__*")            // two bytes
	f("${topic}", "a_b", "c", "a_b*")                                  // or it would be a/b's
	f("${topic[0]}.${topic[1]}", "a_b/c", "c", "a_b.c*")               // or it would be b_c of a
	f("${topic[0]}", "__consumer_offsets", "c", "__consumer_offsets*") // Kafka's own
	f("${topic[0]}", ".", "c", "_*")
	f("${topic[0]}", "..", "c", "__*")
	f("d.${client_id}", "a", "a/b", "d.a_b*")
	f("d.${client_id}", "a", "", "d.*")
	f("x.${topic[0]}", "a-0123456789abcdef", "c", "x.a-0123456789abcdef*") // looks like one with a hash
	f("x.${topic[0]}", strings.Repeat("y", 300), "c", "x."+strings.Repeat("y", 230)+"*")
}

// Random topics over a nasty alphabet: two different ones never share a name, nor collide as Kafka sees it.
func TestTemplateNeverCollides(t *testing.T) {
	alphabet := []string{"a", "b", "-", "_", ".", "/", "é", "0", " "}
	for _, tmpl := range []string{
		"${topic}", "x.${topic}", "${topic[0]}", "x_${topic[1]}", "${topic[0]}.${topic[1]}", "${topic[0]}-_-${topic[1]}", "${topic}.${client_id}", "${client_id}_${topic}",
	} {
		p, err := parseTemplate(tmpl)
		if err != nil {
			t.Fatal(err)
		}
		seed := rand.Uint64()
		rng := rand.New(rand.NewPCG(seed, 1))
		word := func() string {
			var s string
			for range 1 + rng.IntN(5) {
				s += alphabet[rng.IntN(len(alphabet))]
			}
			return s
		}
		from := make(map[string]string)
		for range 50_000 {
			topic, client := word(), word()
			var values []string
			for _, part := range p.parts {
				switch part.variable {
				case topicVar:
					values = append(values, "t:"+topic)
				case clientVar:
					values = append(values, "c:"+client)
				case levelVar:
					level, ok := topicLevel(topic, part.level)
					if !ok {
						level = "/none"
					}
					values = append(values, "l:"+level)
				}
			}
			in := strings.Join(values, "\x00")
			name := p.render(topic, client)
			if !kafka.ValidTopic(name) {
				t.Fatalf("seed %d: %s of %q = %q: not a Kafka topic", seed, tmpl, in, name)
			}
			same := strings.ReplaceAll(name, ".", "_")
			if other, ok := from[same]; ok && other != in {
				t.Fatalf("seed %d: %s: %q and %q both make %s", seed, tmpl, in, other, name)
			}
			from[same] = in
		}
	}
}

func TestTemplateFaultsNameThePosition(t *testing.T) {
	f := func(tmpl, want string) {
		t.Helper()
		_, err := parseTemplate(tmpl)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q in it", tmpl, err, want)
		}
	}
	f("", "empty")
	f("a/b", `position 2: '/' is not allowed`)
	f("telemetry.$topic", `position 11: '$' is not allowed`)
	f("telemetry.${topik}", "position 11: unknown variable ${topik}; want ${topic}, ${topic[N]} or ${client_id}")
	f("x.${topic[a]}", `position 3: "a" in topic[a] is not a level`)
	f("x.${topic[-1]}", `position 3: "-1"`)
	f("x.${topic", "position 3: ${ has no closing brace")
	f("${topic[0]}${topic[1]}", "position 12: between two variables")
	f("${topic[0]}-${topic[1]}", "position 13: between two variables")
	f("..", "not a Kafka topic")
	f("__mine", "belong to Kafka itself")
	f(strings.Repeat("a", 250), "1 to 249 characters")
	f(strings.Repeat("a", 240)+"${topic}", "240 characters beside the variables, at most 231")
}

func TestTopicsBeyondTheLimitOverflow(t *testing.T) {
	r, err := newRoute(RouteConfig{Name: "r", Topic: "t.${topic[0]}", Key: KeyClientID, MaxTopics: 2}, "gw")
	if err != nil {
		t.Fatal(err)
	}
	f := func(in, want string, wantFirst bool) {
		t.Helper()
		if got, first := r.admit(in); got != want || first != wantFirst {
			t.Errorf("admit(%s) = %s %v, want %s %v", in, got, first, want, wantFirst)
		}
	}
	f("t.a", "t.a", false)
	f("t.b", "t.b", false)
	f("t.c", "t.overflow", true)
	f("t.d", "t.overflow", false)
	f("t.a", "t.a", false)
}
