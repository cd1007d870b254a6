package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/gateway/api"
)

// newShow makes cmd one that asks the running gateway for a thing by its name and prints it.
func newShow[T any](cmd *cobra.Command, ask func(*api.Client, context.Context, string) (T, error), print func(io.Writer, T) error) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	target, out := addRunning(cmd), addOutput(cmd)
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		c, err := target.open()
		if err != nil {
			return err
		}
		thing, err := ask(c, contextOf(cmd), args[0])
		if err != nil {
			return hinted(c, err)
		}
		if out.json {
			return writeJSON(cmd.OutOrStdout(), thing)
		}
		return print(cmd.OutOrStdout(), thing)
	})
	return cmd
}
