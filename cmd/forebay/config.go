package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/configs"
	"github.com/forebay-gateway/forebay/gateway/config"
)

func newConfig() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check, print and start configurations",
		Args:  onlyCommands,
		RunE:  help,

		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(newConfigCheck(), newConfigInit(), newConfigSchema())
	return cmd
}

// checked is the JSON result of config check.
type checked struct {
	File     string         `json:"file"`
	OK       bool           `json:"ok"`
	Faults   config.Faults  `json:"faults"`
	Warnings []string       `json:"warnings"` // allowed, and seldom meant
	Config   map[string]any `json:"config,omitempty"`
}

func newConfigCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Say everything that is wrong with a configuration",
		Long: `Say everything that is wrong with a configuration, as serve would see it: with the environment and flags, and which of the files that it
names (certificates, keys, CAs, lists, passwords, rules) are missing or cannot be read by who asks. Nothing is started
and no address or directory is touched. Exits with 0 when nothing is wrong, with 1 when something is. What is allowed and seldom meant
is a warning, which serve writes to its log too.`,
		Args: cobra.MaximumNArgs(1),
	}
	flags, out := config.AddFlags(cmd.Flags()), addOutput(cmd)
	files := cmd.Flags().Bool("files", true, "look for the files that it names; false where they are not, such as in a pipeline")
	show := cmd.Flags().Bool("print", false, "print every value as the gateway would use it, and where it came from")
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 && flags.File != "" {
			return &askedError{err: fmt.Errorf("%s and --config %s are two files", args[0], flags.File), code: exitUsage}
		}
		if len(args) == 1 {
			flags.File = args[0]
		}
		flags.WithoutFiles, flags.LookForFiles = !*files, *files
		loaded, err := config.Load(flags)
		faults, wrong := errors.AsType[config.Faults](err)
		if err != nil && !wrong {
			return err
		}
		if out.json {
			return checkedJSON(cmd.OutOrStdout(), flags.Path(), loaded, faults, *show)
		}
		if wrong {
			return &askedError{err: told(flags.Path(), faults), code: exitFailed}
		}
		for _, w := range loaded.Config.Warnings() {
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", w)
		}
		if *show {
			return loaded.Print(cmd.OutOrStdout())
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: ok\n", flags.Path())
		return err
	})
	return cmd
}

func checkedJSON(w io.Writer, file string, loaded *config.Loaded, faults config.Faults, show bool) error {
	result := checked{File: file, OK: len(faults) == 0, Faults: faults}
	if result.Faults == nil {
		result.Faults = config.Faults{} // [] and not null
	}
	result.Warnings = []string{}
	if loaded != nil {
		result.Warnings = append(result.Warnings, loaded.Config.Warnings()...)
	}
	if loaded != nil && show {
		result.Config = loaded.Values()
	}
	if err := writeJSON(w, result); err != nil {
		return err
	}
	if !result.OK {
		return &askedError{code: exitFailed} // the result has said it
	}
	return nil
}

func newConfigInit() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init [FILE]",
		Short: "Write a configuration with every key, its meaning and its default",
		Long: `Write a configuration with every key, its meaning and its default to FILE, or to standard output (no FILE, or -). Keys are commented out:
what is left so follows the defaults of later versions. A file that exists is left alone.`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 || args[0] == "-" {
			_, err := cmd.OutOrStdout().Write(configs.Example)
			return err
		}
		f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
		if err != nil {
			return err
		}
		_, err = f.Write(configs.Example)
		return errors.Join(err, f.Close())
	})
	return cmd
}

func newConfigSchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the configuration, for editors",
		Args:  cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(configs.Schema)
			return err
		}),
	}
}
