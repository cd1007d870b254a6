package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt/auth"
)

func newPasswd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "passwd",
		Short: "Create, change, delete and verify users of a password file",
		Long: `Create, change, delete and verify users of a password file (mqtt.auth.password.file). The file is replaced as a whole, with
mode 0600, and everything else in it stays as it is; a gateway that runs reads it again by itself.`,
		Args: onlyCommands,
		RunE: help,

		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(newPasswdSet(), newPasswdDelete(), newPasswdVerify(), newPasswdLs())
	return cmd
}

func newPasswdSet() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set FILE USER",
		Short: "Create a user, or change the password of one",
		Long: `Create a user, or change the password of one. The password is asked for twice on a terminal, and otherwise is the first line of
standard input: never an argument, which every user of the machine can see.

The password is kept as an argon2id hash. --scram adds what SCRAM-SHA-256 needs, --scram-only leaves the hash out. A user
that is changed keeps its groups, unless --groups says otherwise.`,
		Args: cobra.ExactArgs(2),
	}
	out := addOutput(cmd)
	scram := cmd.Flags().Bool("scram", false, "store a SCRAM-SHA-256 credential too")
	only := cmd.Flags().Bool("scram-only", false, "store a SCRAM-SHA-256 credential and no hash")
	iterations := cmd.Flags().Int("iterations", auth.DefaultScramIterations, "cost of SCRAM")
	groups := cmd.Flags().String("groups", "", "groups of the user, joined by commas; empty is none")
	memory := bytesFlag(unit.Bytes(auth.DefaultHashParams.Memory) << 10)
	cmd.Flags().Var(&memory, "memory", "memory that verifying the hash takes")
	passes := cmd.Flags().Uint32("passes", auth.DefaultHashParams.Time, "passes over the memory")
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		if memory < 8<<10 || memory > 1<<30 {
			return &askedError{err: fmt.Errorf("--memory %v is not between 8KiB and 1GiB", unit.Bytes(memory)), code: exitUsage}
		}
		ch := auth.PasswordChange{
			User: args[1], Hash: !*only, Scram: *scram || *only, Iterations: *iterations,
			Params: auth.HashParams{Memory: uint32(memory >> 10), Time: *passes, Threads: auth.DefaultHashParams.Threads},
		}
		if cmd.Flags().Changed("groups") {
			ch.Groups = []string{}
			if *groups != "" {
				list, err := auth.ParseGroups(*groups)
				if err != nil {
					return &askedError{err: fmt.Errorf("--groups: %w", err), code: exitUsage}
				}
				ch.Groups = list
			}
		}
		if err := auth.CheckUserName(args[1]); err != nil { // before the password is typed
			return err
		}
		password, err := readPassword(cmd.InOrStdin(), cmd.ErrOrStderr(), true)
		if err != nil {
			return err
		}
		ch.Password = password
		created, err := auth.SetPassword(args[0], ch)
		if err != nil {
			return err
		}
		did := "changed"
		if created {
			did = "created"
		}
		return said(cmd, out, map[string]any{"user": args[1], "result": did}, "%s: user %s %s", args[0], args[1], did)
	})
	return cmd
}

func newPasswdDelete() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "delete FILE USER",
		Short: "Delete a user",
		Args:  cobra.ExactArgs(2),
	}
	out := addOutput(cmd)
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		if err := auth.DeleteUser(args[0], args[1]); err != nil {
			return err
		}
		return said(cmd, out, map[string]any{"user": args[1], "result": "deleted"}, "%s: user %s deleted", args[0], args[1])
	})
	return cmd
}

func newPasswdVerify() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify FILE USER",
		Short: "Say whether a password is the one of a user",
		Long:  `Say whether a password is the one of a user. It is read as set reads it. Exits with 0 when it is, with 1 when it is not.`,
		Args:  cobra.ExactArgs(2),
	}
	out := addOutput(cmd)
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		password, err := readPassword(cmd.InOrStdin(), cmd.ErrOrStderr(), false)
		if err != nil {
			return err
		}
		right, err := auth.VerifyPassword(args[0], args[1], password)
		if err != nil {
			return err
		}
		words := "is right"
		if !right {
			words = "is wrong"
		}
		if err := said(cmd, out, map[string]any{"user": args[1], "right": right}, "%s: password of %s %s", args[0], args[1], words); err != nil {
			return err
		}
		if !right {
			return &askedError{code: exitFailed}
		}
		return nil
	})
	return cmd
}

func newPasswdLs() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls FILE",
		Short: "List the users, or name the line that is wrong",
		Args:  cobra.ExactArgs(1),
	}
	out := addOutput(cmd)
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		data, err := os.ReadFile(args[0])
		if err != nil {
			return err
		}
		p, err := auth.ParsePasswords(args[0], data, 0)
		if err != nil {
			return err
		}
		if out.json {
			return writeJSON(cmd.OutOrStdout(), append([]auth.User{}, p.Users()...))
		}
		for _, u := range p.Users() {
			var ways []string
			if u.Password {
				ways = append(ways, "password")
			}
			if u.Scram {
				ways = append(ways, "scram")
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s\t%s\t%s\n", u.Name, strings.Join(ways, ","), strings.Join(u.Groups, ","))
		}
		return nil
	})
	return cmd
}

// said prints a result for people or for programs.
func said(cmd *cobra.Command, out *output, result map[string]any, format string, args ...any) error {
	if out.json {
		return writeJSON(cmd.OutOrStdout(), result)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), format+"\n", args...)
	return err
}

// readPassword asks on a terminal, without showing what is typed, and otherwise takes the first line of in.
func readPassword(in io.Reader, ask io.Writer, twice bool) ([]byte, error) {
	f, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		line, err := bufio.NewReader(io.LimitReader(in, 64<<10)).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			return nil, errors.New("no password on standard input")
		}
		return []byte(line), nil
	}
	one := func(prompt string) ([]byte, error) {
		fmt.Fprint(ask, prompt)
		defer fmt.Fprintln(ask)
		return term.ReadPassword(int(f.Fd()))
	}
	password, err := one("Password: ")
	if err != nil || !twice {
		return password, err
	}
	again, err := one("Again: ")
	if err != nil {
		return nil, err
	}
	if string(again) != string(password) {
		return nil, errors.New("the two passwords are not the same")
	}
	return password, nil
}

// bytesFlag is a size on the command line.
type bytesFlag unit.Bytes

// String, Set and Type make it a flag.
func (b *bytesFlag) String() string { return unit.Bytes(*b).String() }

// Set reads the flag.
func (b *bytesFlag) Set(s string) error {
	v, err := unit.ParseBytes(s)
	*b = bytesFlag(v)
	return err
}

// Type names the value in the help.
func (b *bytesFlag) Type() string { return "size" }
