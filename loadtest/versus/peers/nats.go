package main

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// runNATS is a NATS server with MQTT whose JetStream syncs before it acknowledges.
func runNATS(ctx context.Context, dir string, port int) error {
	s, err := server.NewServer(&server.Options{
		ServerName: "bench", Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: dir, SyncAlways: true,
		MQTT: server.MQTTOpts{Host: "127.0.0.1", Port: port, MaxAckPending: 16384},
	})
	if err != nil {
		return err
	}
	go s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		return errors.New("nats does not start")
	}
	<-ctx.Done()
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}
