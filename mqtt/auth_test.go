package mqtt_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/auth"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool"
)

// Each way not to come in has its code, in both versions, and nobody is told more.
func TestAuthRefusesConnect(t *testing.T) {
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }))
	defer hook.Close()
	g := guard(t, "deny connect user=eve\nallow all topic=#\n", func(c *mqtt.Config) {
		c.Listeners[1].Auth.Methods = []string{"anonymous"}
	})
	f := func(user, password string, reason, returnCode byte) {
		t.Helper()
		g.refused(t, mqtttest.Connect{ID: "c", UserName: user, Password: password}, reason, returnCode)
	}
	f("ann", "bob", 0x86, 4) // wrong password
	f("kim", "ann", 0x86, 4) // unknown user
	f("ann", "", 0x86, 4)    // no password
	f("", "", 0x87, 5)       // nothing at all
	f("eve", "eve", 0x87, 5) // by the ACL
	if err := g.srv.Ban(auth.Ban{Client: "c"}); err != nil {
		t.Fatal(err)
	}
	f("ann", "ann", 0x8A, 5)
	if n, err := g.srv.Unban(auth.Ban{Client: "c"}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	for _, version := range []byte{4, 5} {
		c := g.connect(t, mqtttest.Connect{ID: "c", UserName: "ann", Password: "ann", Version: version})
		c.Disconnect()
		ws := mqtttest.DialWebSocket(t, g.ws, "/mqtt") // a listener has methods of its own
		ws.Connect(mqtttest.Connect{ID: "ws", Version: version})
		ws.Disconnect()
	}

	down := guard(t, "", func(c *mqtt.Config) {
		c.Auth.Methods = []string{"http"}
		c.Auth.HTTP.URL = hook.URL
	})
	down.refused(t, as("ann"), 0x88, 3)
}

func TestAuthQueueIsFull(t *testing.T) {
	g := guard(t, "", func(c *mqtt.Config) {
		c.Auth.Password.Parallel, c.Auth.Password.Queue = 1, 0
		c.Auth.Password.CacheTTL = 0
	})
	if _, err := auth.SetPassword(g.users, auth.PasswordChange{User: "slow", Password: []byte("x"), Hash: true}); err != nil {
		t.Fatal(err)
	}
	g.reload(t, "")
	var mu sync.Mutex
	got := map[byte]int{}
	for range 100 { // until two have met
		var wg sync.WaitGroup
		for range 4 {
			c := g.dial(t)
			wg.Go(func() {
				c.SendConnect(mqtttest.Connect{UserName: "slow", Password: "x"})
				if pk, err := c.TryNext(30 * time.Second); err == nil {
					mu.Lock()
					got[pk.ReasonCode]++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if got[0x89] > 0 && got[0] > 0 {
			return
		}
	}
	t.Errorf("reason codes %v", got)
}

func TestAuthRefusesPublish(t *testing.T) {
	g := guard(t, "allow publish topic=ok/%u\nallow all user=ann\n")
	watch := g.connect(t, as("ann"))
	watch.Subscribe("#", 2)
	c := g.connect(t, as("bob"))
	f := func(topic string, qos byte) {
		t.Helper()
		id := c.SendPublish(mqtttest.Publish{Topic: topic, QoS: qos})
		switch qos {
		case 1:
			c.ExpectAck(packets.Puback, id, 0x87)
		case 2:
			c.ExpectAck(packets.Pubrec, id, 0x87)
		}
	}
	for qos := range byte(3) {
		f("ok/ann", qos)
		f("other", qos)
	}
	c.Ping() // it is still connected
	c.Publish(mqtttest.Publish{Topic: "ok/bob", QoS: 2})
	watch.Receive(mqtttest.Publish{Topic: "ok/bob", QoS: 2})
	if n := g.dropped("not_authorized"); n != 6 {
		t.Errorf("%d counted", n)
	}
	for qos := range byte(3) { // a 3.1.1 client loses its connection
		old := g.connect(t, mqtttest.Connect{ID: "old", UserName: "bob", Password: "bob", Version: 4})
		old.SendPublish(mqtttest.Publish{Topic: "other", QoS: qos})
		old.ExpectClosed()
	}
	if n := g.dropped("not_authorized"); n != 9 {
		t.Errorf("%d counted", n)
	}
	c.Publish(mqtttest.Publish{Topic: "ok/bob", QoS: 1, Payload: "end"})
	watch.Receive(mqtttest.Publish{Topic: "ok/bob", QoS: 1, Payload: "end"})
}

func TestAuthDropsPublishOf311ByPolicy(t *testing.T) {
	g := guard(t, "allow publish topic=ok\nallow all user=ann\n", func(c *mqtt.Config) { c.Auth.ACL.Denied311 = auth.DeniedDrop })
	watch := g.connect(t, as("ann"))
	watch.Subscribe("#", 2)
	old := g.connect(t, mqtttest.Connect{ID: "old", UserName: "bob", Password: "bob", Version: 4})
	for qos := range byte(3) {
		old.Publish(mqtttest.Publish{Topic: "other", QoS: qos})
	}
	old.Publish(mqtttest.Publish{Topic: "ok", QoS: 1})
	watch.Receive(mqtttest.Publish{Topic: "ok", QoS: 1})
	if n := g.dropped("not_authorized"); n != 3 {
		t.Errorf("%d counted", n)
	}
}

func TestAuthRefusesSubscribePerFilter(t *testing.T) {
	g := guard(t, "deny subscribe topic=a/secret/#\nallow subscribe topic=a/# user=bob\nallow subscribe topic=q qos=0\n")
	for version, refusal := range map[byte]byte{5: 0x87, 4: 0x80} {
		c := g.connect(t, mqtttest.Connect{ID: "c", UserName: "bob", Password: "bob", Version: version})
		props := ` 00`
		if version == 4 {
			props = ""
		}
		c.Send(`82 len 0007` + props + ` s"a/b" 01 s"a/#" 01 s"#" 01 s"$share/g/a/c" 02 s"$share/g/b" 02 s"q" 00 s"q" 01`)
		pk := c.Expect(packets.Suback)
		want := []byte{1, refusal, refusal, 2, refusal, 0, refusal}
		if string(pk.ReasonCodes) != string(want) {
			t.Errorf("version %d: %x, want %x", version, pk.ReasonCodes, want)
		}
		c.Disconnect()
	}
}

func TestAuthChecksWills(t *testing.T) {
	const rules = "allow publish topic=will/%u\nallow all user=ann\n"
	g := guard(t, rules)
	watch := g.connect(t, as("ann"))
	watch.Subscribe("#", 1)
	o := as("bob")
	o.Will = &mqtttest.Publish{Topic: "will/ann", QoS: 1}
	g.refused(t, o, 0x87, 5)

	o.Will.Topic = "will/bob"
	c := g.connect(t, o)
	c.Close()
	watch.Receive(mqtttest.Publish{Topic: "will/bob", QoS: 1})

	// The rules of the moment when it is published count.
	c = g.connect(t, o)
	g.reload(t, "deny publish user=bob\n"+rules)
	c.Close()
	for g.dropped("not_authorized") == 0 {
		time.Sleep(time.Millisecond)
	}
	watch.Publish(mqtttest.Publish{Topic: "end", QoS: 1})
	watch.Receive(mqtttest.Publish{Topic: "end", QoS: 1})
}

// A changed ACL counts at once for those who are connected: for what they send, for what they ask for, and for what comes to
// subscriptions that were granted before.
func TestAuthReloadAppliesToLiveSessions(t *testing.T) {
	const all = "allow all topic=#\n"
	g := guard(t, all)
	sub, shared, pub := g.connect(t, as("bob")), g.connect(t, as("eve")), g.connect(t, as("ann"))
	sub.Subscribe("a/#", 2)
	shared.Subscribe("$share/g/a/#", 1)
	send := func(topic string) {
		t.Helper()
		for qos := range byte(3) {
			pub.Publish(mqtttest.Publish{Topic: topic, QoS: qos})
		}
	}
	receive := func(c *mqtttest.Client, topic string) {
		t.Helper()
		for range 3 {
			pk := c.Expect(packets.Publish)
			if pk.TopicName != topic {
				t.Fatalf("got %s, want %s", pk.TopicName, topic)
			}
			c.Finish(pk.FixedHeader.Qos, pk.PacketID)
		}
	}
	send("a/1")
	receive(sub, "a/1")
	receive(shared, "a/1")

	g.reload(t, "deny subscribe topic=a/2\ndeny publish topic=a/3\n"+all)
	send("a/2") // goes to nobody
	send("a/4")
	receive(sub, "a/4")
	receive(shared, "a/4")
	pub.ExpectAck(packets.Puback, pub.SendPublish(mqtttest.Publish{Topic: "a/3", QoS: 1}), 0x87)
	if reason := sub.ExpectSuback(sub.SendSubscribe("a/2", 1)); reason != 0x87 {
		t.Errorf("suback 0x%02x", reason)
	}
	if n := g.dropped("not_authorized"); n != 7 {
		t.Errorf("%d counted", n)
	}

	// A share group passes members over that may not have a message.
	g.reload(t, "deny subscribe topic=a/5 user=eve\n"+all)
	second := g.connect(t, mqtttest.Connect{ID: "second", UserName: "ann", Password: "ann"})
	second.Subscribe("$share/g/a/#", 1)
	send("a/5")
	receive(second, "a/5")
	receive(sub, "a/5")

	// A fault in the file changes nothing and is told with its line.
	g.rules(t, all+"alow publish topic=x\n")
	if err := g.srv.ReloadAuth(); err == nil || !errors.As(err, new(*auth.FileError)) {
		t.Errorf("%v", err)
	}
	send("a/1")
	receive(sub, "a/1")
}

// What waits for a session is not given to another user who comes with its client ID.
func TestAuthSessionOfAnotherUser(t *testing.T) {
	g := guard(t, "allow subscribe topic=priv/%u/#\nallow subscribe topic=pub/#\nallow publish topic=#\n")
	resume := func(user string) mqtttest.Connect {
		return mqtttest.Connect{ID: "shared", UserName: user, Password: user, Resume: true, Properties: `11 00000e10`}
	}
	c := g.connect(t, resume("bob"))
	c.Subscribe("priv/bob/#", 2)
	c.Subscribe("pub/#", 1)
	pub := g.connect(t, as("ann"))
	pub.Publish(mqtttest.Publish{Topic: "priv/bob/0", QoS: 1})
	c.Expect(packets.Publish) // in flight, never acknowledged
	c.Close()
	for g.srv.Stats().Connections > 1 {
		time.Sleep(time.Millisecond)
	}
	pub.Publish(mqtttest.Publish{Topic: "priv/bob/1", QoS: 1})
	pub.Publish(mqtttest.Publish{Topic: "priv/bob/2", QoS: 2})
	pub.Publish(mqtttest.Publish{Topic: "pub/3", QoS: 1})

	c = g.connect(t, resume("eve"))
	c.Receive(mqtttest.Publish{Topic: "pub/3", QoS: 1})
	if n := g.dropped("not_authorized"); n != 3 {
		t.Errorf("%d counted", n)
	}
}

func TestAuthRetainedMessagesAreChecked(t *testing.T) {
	g := guard(t, "allow all topic=#\n")
	pub, sub := g.connect(t, as("ann")), g.connect(t, as("bob"))
	for _, topic := range []string{"r/1", "r/2", "r/3"} {
		pub.Publish(mqtttest.Publish{Topic: topic, QoS: 1, Retain: true, Payload: "x"})
	}
	g.reload(t, "allow subscribe topic=r/+ qos=0\ndeny subscribe topic=r/2\nallow all topic=#\n")
	sub.SendSubscribe("r/+", 0)
	sub.Expect(packets.Suback)
	sub.ExpectPublish(mqtttest.Publish{Topic: "r/1", Retain: true, Payload: "x"})
	sub.ExpectPublish(mqtttest.Publish{Topic: "r/2", Retain: true, Payload: "x"}) // the first rule
	sub.ExpectPublish(mqtttest.Publish{Topic: "r/3", Retain: true, Payload: "x"})
}

// Who would not be let in again does not stay: another password, a user that is gone, a ban.
func TestAuthEndsConnectionsThatWouldNotBeLetIn(t *testing.T) {
	g := guard(t, "")
	ann, bob, eve := g.connect(t, as("ann")), g.connect(t, as("bob")), g.connect(t, as("eve"))
	old := g.connect(t, mqtttest.Connect{ID: "old", UserName: "bob", Password: "bob", Version: 4})
	g.setPassword(t, "bob", "new")
	g.reload(t, "")
	bob.ExpectDisconnect(0x87)
	old.ExpectClosed()
	if err := auth.DeleteUser(g.users, "eve"); err != nil {
		t.Fatal(err)
	}
	g.reload(t, "")
	eve.ExpectDisconnect(0x87)
	ann.Ping()
	if err := g.srv.Ban(auth.Ban{User: "a*"}); err != nil {
		t.Fatal(err)
	}
	ann.ExpectDisconnect(0x98)
}

func TestAuthFilesAreWatched(t *testing.T) {
	g := guard(t, "allow all topic=#\n", func(c *mqtt.Config) { c.Auth.ReloadInterval = unit.Duration(10 * time.Millisecond) })
	c := g.connect(t, as("bob"))
	c.Publish(mqtttest.Publish{Topic: "a", QoS: 1})
	g.setPassword(t, "bob", "new")
	c.ExpectDisconnect(0x87)
}

func TestAuthUserNameIsInTheRecords(t *testing.T) {
	g := guard(t, "")
	c := g.connect(t, mqtttest.Connect{ID: "c", UserName: "ann", Password: "ann"})
	c.Publish(mqtttest.Publish{Topic: "t", QoS: 1})
	g.stop(t)
	log, err := spool.Open(g.spool, spool.Options{Now: g.now})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	r, err := log.NewReader(spool.DefaultStream, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	b, err := r.Next(ctx)
	if err != nil || b.Records[0].UserName != "ann" || b.Records[0].ClientID != "c" {
		t.Errorf("%+v, %v", b.Records, err)
	}
}

// A token ends its connection when it expires.
func TestAuthTokenExpiryEndsTheConnection(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	set, _ := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k"}}})
	file := filepath.Join(t.TempDir(), "jwks")
	if err := os.WriteFile(file, set, 0o600); err != nil {
		t.Fatal(err)
	}
	g := guard(t, "", func(c *mqtt.Config) {
		c.Auth.Methods = []string{"jwt"}
		c.Auth.JWT.JWKSFile, c.Auth.JWT.Issuer, c.Auth.JWT.Audience = file, "i", []string{"a"}
		c.Auth.JWT.PublishClaim, c.Auth.JWT.Leeway = "pub", 0
	})
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "k"))
	if err != nil {
		t.Fatal(err)
	}
	token := func(lives time.Duration) string {
		body, _ := json.Marshal(map[string]any{"iss": "i", "aud": "a", "sub": "dev", "exp": time.Now().Add(lives).Unix(), "pub": []string{"up/#"}})
		sig, err := signer.Sign(body)
		if err != nil {
			t.Fatal(err)
		}
		s, _ := sig.CompactSerialize()
		return s
	}
	g.refused(t, mqtttest.Connect{ID: "c", UserName: "x", Password: token(-time.Minute)}, 0x86, 4)
	g.refused(t, mqtttest.Connect{ID: "c", UserName: "x", Password: base64.StdEncoding.EncodeToString([]byte("no token"))}, 0x86, 4)
	both(t, func(t *testing.T, version byte) {
		c := g.connect(t, mqtttest.Connect{ID: "c", UserName: "x", Password: token(3 * time.Second), Version: version})
		c.Publish(mqtttest.Publish{Topic: "up/1", QoS: 1})
		if version == 5 {
			c.ExpectAck(packets.Puback, c.SendPublish(mqtttest.Publish{Topic: "down", QoS: 1}), 0x87) // claims are rules
		}
		c.ExpectDisconnect(0xA0) // maximum connect time
	})
}
