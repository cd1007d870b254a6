package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// sayWants has every command below cmd say how it is called when it refuses its arguments. Cobra's own words name none of them
// ("accepts 1 arg(s), received 0"), and call an argument of a command that takes none an unknown command.
func sayWants(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		sayWants(c)
	}
	check := cmd.Args
	if check == nil || cmd.HasSubCommands() || cmd.Name() == "help" {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if check(cmd, args) == nil {
			return nil
		}
		want, got := strings.TrimSuffix(cmd.UseLine(), " [flags]"), "no argument"
		if len(args) > 0 {
			got = strings.Join(args, " ")
		}
		if cmd.Flags().Lookup("config") != nil && check(cmd, nil) == nil { // forebay serve forebay.yaml
			want += " (--config names a configuration)"
		}
		return fmt.Errorf("want %s, got %s", want, got)
	}
}

// strictHelp has the commands that cobra adds refuse what is no command, as ours do: without it they succeed.
func strictHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Args = func(_ *cobra.Command, args []string) error {
				found, rest, err := root.Find(args)
				if err != nil || len(rest) == 0 {
					return err
				}
				return onlyCommands(found, rest)
			}
		case "completion":
			c.Args, c.RunE = onlyCommands, help
		}
	}
}
