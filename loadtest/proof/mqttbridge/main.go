// Command mqttbridge is what people build today to carry MQTT to Kafka: a subscriber with a persistent session that produces what
// it gets and acknowledges a message when Kafka has it. It is written for the comparison in package proof, with the
// usual libraries, and as quick as they let it be.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/eclipse/paho.golang/paho"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "mqttbridge:", err)
		os.Exit(1)
	}
}

func run() error {
	broker := flag.String("mqtt", "127.0.0.1:1883", "MQTT broker")
	brokers := flag.String("kafka", "127.0.0.1:9092", "Kafka brokers, separated by commas")
	topic := flag.String("topic", "telemetry", "Kafka topic")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()

	producer, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(*brokers, ",")...), kgo.DefaultProduceTopic(*topic),
		kgo.ProducerBatchCompression(kgo.ZstdCompression()), kgo.MaxBufferedRecords(100_000))
	if err != nil {
		return err
	}
	defer producer.Close()
	conn, err := net.Dial("tcp", *broker)
	if err != nil {
		return err
	}
	gone := make(chan error, 1)
	fail := func(err error) {
		select {
		case gone <- err:
		default:
		}
	}
	client := paho.NewClient(paho.ClientConfig{
		Conn: conn, EnableManualAcknowledgment: true, OnClientError: fail,
		OnServerDisconnect: func(d *paho.Disconnect) { fail(fmt.Errorf("disconnected: %d", d.ReasonCode)) },
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
			m := p.Packet
			producer.Produce(ctx, &kgo.Record{
				Key: []byte(m.Topic), Value: m.Payload, Headers: []kgo.RecordHeader{{Key: "mqtt.topic", Value: []byte(m.Topic)}},
			}, func(_ *kgo.Record, err error) {
				if err == nil {
					err = p.Client.Ack(m)
				}
				if err != nil {
					fail(err)
				}
			})
			return true, nil
		}},
	})
	receive := uint16(65535)
	expiry := uint32(3600)
	if _, err := client.Connect(ctx, &paho.Connect{
		ClientID: "mqttbridge", KeepAlive: 30, Properties: &paho.ConnectProperties{ReceiveMaximum: &receive, SessionExpiryInterval: &expiry},
	}); err != nil {
		return err
	}
	if _, err := client.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: "#", QoS: 1}}}); err != nil {
		return err
	}
	fmt.Println("ready")
	select {
	case <-ctx.Done():
		return nil
	case err := <-gone:
		return err
	}
}
