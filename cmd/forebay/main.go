// Command forebay is the gateway and the tools of its operator. `forebay help` lists the commands.
//
// It exits with 0 when it did what it was asked for, with 1 when it could not (the error is the last line on standard error),
// and with 2 when the command line is wrong, or serve and demo cannot use their configuration, which no restart repairs. serve
// exits with 3 when a part did not stop before its deadline, and with 128 and the number of the signal when a second one
// ended it at once; what was acknowledged is in the spool in both cases.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/gateway/config"
)

// The exit codes.
const (
	exitOK             = 0
	exitFailed         = 1
	exitUsage          = 2
	exitStopIncomplete = 3
	exitSignal         = 128 // and the number of the signal, as shells have it
)

func main() { os.Exit(run(newRoot())) }

// run executes a command line and returns its exit code.
func run(root *cobra.Command) int {
	err := root.Execute()
	if err == nil {
		return exitOK
	}
	var asked *askedError
	if !errors.As(err, &asked) {
		fmt.Fprintf(root.ErrOrStderr(), "forebay: %v\nRun forebay help for the commands.\n", err)
		return exitUsage
	}
	if asked.err != nil {
		fmt.Fprintf(root.ErrOrStderr(), "forebay: %v\n", asked.err)
	}
	return asked.code
}

// askedError is the error of a command that was understood; every other one is about the command line.
type askedError struct {
	err  error // nil when the command has said everything itself
	code int
}

func (e *askedError) Error() string { return fmt.Sprint(e.err) }
func (e *askedError) Unwrap() error { return e.err }

// does wraps what a command does, so that run can tell its errors from those of the command line.
func does(fn func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := fn(cmd, args)
		if err == nil {
			return nil
		}
		var asked *askedError
		if errors.As(err, &asked) {
			return err
		}
		return &askedError{err: err, code: exitFailed}
	}
}

// faulty is the error of a command that serves and got a configuration that it cannot use.
func faulty(err error) error {
	if faults, ok := errors.AsType[config.Faults](err); ok {
		return &askedError{err: told("configuration", faults), code: exitUsage}
	}
	return &askedError{err: err, code: exitUsage}
}

// told is what somebody who has to repair it reads: one line for each fault.
func told(what string, faults config.Faults) error {
	switch n := len(faults); {
	case n == 1:
		return fmt.Errorf("%s has a fault:\n%w", what, faults)
	case n > config.MaxFaults:
		return fmt.Errorf("%s has more than %d faults:\n%w", what, config.MaxFaults, faults)
	}
	return fmt.Errorf("%s has %d faults:\n%w", what, len(faults), faults)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "forebay",
		Short:         "MQTT 5 ingest gateway: devices publish, every acknowledged message is on disk, Kafka gets it in order",
		Args:          onlyCommands,
		RunE:          help,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       build().Version, // --version; the command version says more
	}
	root.SetFlagErrorFunc(wrongFlag)
	root.SuggestionsMinimumDistance = 2
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newServe(), newDemo(), newConfig(), newSpool(), newTier(), newDeadLetter(), newReplay(), newRoute(), newDownlink(), newPasswd(), newACL(), newBan(), newReload(), newVersion())
	strictHelp(root)
	sayWants(root)
	return root
}

// onlyCommands refuses what is no command below cmd, with the one that was meant. Without it cobra prints the help and succeeds,
// and a script with a typo goes on.
func onlyCommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if near := config.Nearest(args[0], names); near != "" {
		return fmt.Errorf("unknown command %q for %q (did you mean %s?)", args[0], cmd.CommandPath(), near)
	}
	return fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
}

// wrongFlag names what has to come first when a flag was given to a command that only has others below it.
func wrongFlag(cmd *cobra.Command, err error) error {
	if !cmd.HasAvailableSubCommands() || cmd == cmd.Root() {
		return err
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return fmt.Errorf("%w: %s wants one of %s first, and flags behind it", err, cmd.CommandPath(), strings.Join(names, ", "))
}

func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }
