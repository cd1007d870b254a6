package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strconv"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/listeners"
)

// runMochi is mochi-mqtt's own Server with its defaults, in memory.
func runMochi(ctx context.Context, port int) error {
	s := mqtt.New(&mqtt.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err := s.AddHook(new(auth.AllowHook), nil); err != nil {
		return err
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	if err := s.AddListener(listeners.NewTCP(listeners.Config{ID: "tcp", Address: addr})); err != nil {
		return err
	}
	if err := s.Serve(); err != nil {
		return err
	}
	<-ctx.Done()
	return nil // Close waits for every client, without a limit
}
