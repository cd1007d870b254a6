package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/gateway/api"
)

// newAsk makes cmd one that asks the running gateway, and prints what it answers.
func newAsk[T any](cmd *cobra.Command, ask func(*api.Client, context.Context, []string) (T, error), print func(io.Writer, T) error) *cobra.Command {
	target, out := addRunning(cmd), addOutput(cmd)
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		c, err := target.open()
		if err != nil {
			return err
		}
		answer, err := ask(c, contextOf(cmd), args)
		if err != nil {
			return hinted(c, err)
		}
		if out.json {
			return writeJSON(cmd.OutOrStdout(), answer)
		}
		return print(cmd.OutOrStdout(), answer)
	})
	return cmd
}

// newAskAll is newAsk for all things of a kind.
func newAskAll[T any](cmd *cobra.Command, ask func(*api.Client, context.Context) (T, error), print func(io.Writer, T) error) *cobra.Command {
	cmd.Args = cobra.NoArgs
	return newAsk(cmd, func(c *api.Client, ctx context.Context, _ []string) (T, error) { return ask(c, ctx) }, print)
}

// newAskOne is newAsk for one thing by its name.
func newAskOne[T any](cmd *cobra.Command, ask func(*api.Client, context.Context, string) (T, error), print func(io.Writer, T) error) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	return newAsk(cmd, func(c *api.Client, ctx context.Context, args []string) (T, error) { return ask(c, ctx, args[0]) }, print)
}
