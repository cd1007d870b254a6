package mapping

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// rendered is the Kafka topic that a template makes.
func rendered(t *topicTemplate, topic, client string) string {
	s := (&Mapper{}).NewScratch(time.Now)
	s.begin(&spool.Record{Topic: topic, ClientID: client})
	name, _, _ := t.render(s)
	return name
}

func TestTopicRenders(t *testing.T) {
	f := func(tmpl, topic, client, want string) {
		t.Helper()
		p, err := parseTopic(tmpl)
		if err != nil {
			t.Fatal(err)
		}
		got := rendered(p, topic, client)
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
	f("x.${topic[0]}", "overflow", "c", "x.overflow*") // takes what is too much
	f("${topic[1]|none}.x", "a", "c", "none.x")
	f("d.${client_id}", "a", "a/b", "d.a_b*")
	f("d.${client_id}", "a", "", "d.*")
	f("x.${topic[0]}", "a-0123456789abcdef", "c", "x.a-0123456789abcdef*") // looks like one with a hash
	f("x.${topic[0]}", strings.Repeat("y", 300), "c", "x."+strings.Repeat("y", 230)+"*")
}

// Random topics over a nasty alphabet: two different ones never share a name, nor collide as Kafka sees it.
func TestTopicNeverCollides(t *testing.T) {
	alphabet := []string{"a", "b", "-", "_", ".", "/", "é", "0", " "}
	for _, tmpl := range []string{
		"${topic}", "x.${topic}", "${topic[0]}", "x_${topic[1]}", "${topic[0]}.${topic[1]}", "${topic[0]}-_-${topic[1]}", "${topic}.${client_id}", "${client_id}_${topic}",
	} {
		p, err := parseTopic(tmpl)
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
				if part.field == nil {
					continue
				}
				switch part.field.source {
				case fromTopic:
					values = append(values, "t:"+topic)
				case fromClientID:
					values = append(values, "c:"+client)
				case fromLevel:
					level, ok := topicLevel(topic, part.field.level)
					if !ok {
						level = "/none"
					}
					values = append(values, "l:"+level)
				}
			}
			in := strings.Join(values, "\x00")
			name := rendered(p, topic, client)
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

func TestTopicFaultsNameThePosition(t *testing.T) {
	f := func(tmpl, want string) {
		t.Helper()
		_, err := parseTopic(tmpl)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q in it", tmpl, err, want)
		}
	}
	f("", "empty")
	f("a/b", `position 2: '/' is not allowed`)
	f("telemetry.$topic", `position 11: '$' is not allowed`)
	f("telemetry.${topik}", `position 11: unknown field "topik"; want one of topic, topic[N], client_id`)
	f("x.${topic[a]}", `position 3: "a" in topic[a] is not a level`)
	f("x.${topic[-1]}", `position 3: "-1"`)
	f("x.${topic", "position 3: ${ has no closing brace")
	f("${topic[0]}${topic[1]}", "position 12: between two fields")
	f("${topic[0]}-${topic[1]}", "position 13: between two fields")
	f("x.${json.}", "position 3: a dot without a name")
	f(`x.${user["a}`, "position 3: the name behind [\" has no closing quote")
	f("x.${user}", "position 3: unknown field")
	f("x.${user.a.b}", `want the name of one user property; one with dots or brackets goes as user["a.b"]`)
	f("x.${json.a:json}", "position 3: a Kafka topic takes no :json")
	f("x.${json.a|b_c}", `position 3: the text "b_c" behind | is not of`)
	f("x.${id}", "position 3: ${id} would make a Kafka topic of every record")
	f("x.${client_id!}", "position 3: '!' behind client_id: want a closing brace")
	f("..", "not a Kafka topic")
	f("__mine", "belong to Kafka itself")
	f(strings.Repeat("a", 250), "1 to 249 characters")
	f(strings.Repeat("a", 240)+"${topic}", "240 characters beside the fields, at most 231")
}
