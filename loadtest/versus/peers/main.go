// Command peers runs the brokers that Go modules hold, for the comparison in the directory above. It is a module of its own, so
// that the product's go.mod does not know them.
//
//	peers nats|mochi DIRECTORY PORT
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: peers nats|mochi DIRECTORY PORT")
	}
	port, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch args[0] {
	case "nats":
		return runNATS(ctx, args[1], port)
	case "mochi":
		return runMochi(ctx, port)
	}
	return fmt.Errorf("unknown broker %q", args[0])
}
