package mapping

import (
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// BenchmarkMapping is what a record costs between the spool and the Kafka client.
func BenchmarkMapping(b *testing.B) {
	f := func(name string, cfg Config) {
		b.Run(name, func(b *testing.B) {
			m := newMapper(b, cfg)
			s := m.NewScratch(time.Now)
			rec := &spool.Record{
				Topic: "site/line4/temp", ClientID: "device-0417", QoS: 1, ReceivedAt: testTime.UnixNano(), Offset: 123456,
				Payload: []byte(`{"ts":1796054399000,"temperature":21.5,"unit":"C","state":"running","seq":4711,"location":"hall 7, line 4, press 12","firmware":"4.11.2","rssi":-61,"battery":87}`),
			}
			b.ReportAllocs()
			for b.Loop() {
				d := m.Decide(s, rec, false)
				if d.Action == Send {
					_ = m.Message(s, rec, &d, nil)
				}
			}
		})
	}
	f("raw", Config{})
	f("envelope", Config{Value: Value{Format: Envelope}})
	f("cloudevents_binary", Config{Value: Value{Format: CloudEventsBinary}})
	f("cloudevents_structured", Config{Value: Value{Format: CloudEventsStructured}})
	f("topic_of_json", Config{Topic: "t.${json.state}"})
	f("left_out_by_topic", Config{Condition: `levels[1] == "line9"`})
	f("left_out_by_json", Config{Condition: `json.temperature > 30.0 && json.state == "running"`})
	f("sent_by_json", Config{Condition: `json.temperature > 20.0 && json.state == "running"`})
}
