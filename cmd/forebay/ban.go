package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/gateway/api"
	"github.com/forebay-gateway/forebay/mqtt/auth"
)

func newBan() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ban",
		Short: "Keep clients, users and addresses out of a running gateway",
		Long: `Keep clients, users and addresses out of a running gateway. Whom all conditions of a ban match is refused (0x8A) and, when it is in,
disconnected (0x98). Bans stand in mqtt.auth.ban.file, or in the file bans of gateway.data_dir, and outlive a restart.

The running gateway is asked on its admin listener (admin.address, or --admin), with the token of the file admin_token in
gateway.data_dir.`,
		Args: onlyCommands,
		RunE: help,

		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(newBanLs(), newBanAdd(), newBanRm(), newBanMend())
	return cmd
}

func newBanLs() *cobra.Command {
	return newAskAll(&cobra.Command{Use: "ls", Short: "List the bans in force"}, (*api.Client).Bans, printBans)
}

func printBans(w io.Writer, bans api.Bans) error {
	t := table(w, "CLIENT\tUSER\tADDRESS\tUNTIL\tAUTOMATIC\tREASON")
	for _, b := range bans.Bans {
		address := ""
		if b.Address.IsValid() {
			address = b.Address.String()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%t\t%s\n", quoted(b.Client), quoted(b.User), address, stamp(b.Until), b.Automatic, quoted(b.Reason))
	}
	return t.Flush()
}

// banFlags are the conditions of a ban.
type banFlags struct{ client, user, address string }

func addBanFlags(cmd *cobra.Command) *banFlags {
	f := &banFlags{}
	cmd.Flags().StringVar(&f.client, "client", "", "client ID; * is any run of characters, ? is one")
	cmd.Flags().StringVar(&f.user, "user", "", "user; * is any run of characters, ? is one")
	cmd.Flags().StringVar(&f.address, "address", "", "address or network, such as 192.0.2.0/24")
	return f
}

func (f *banFlags) ban() (b auth.Ban, err error) {
	b = auth.Ban{Client: f.client, User: f.user}
	if f.address != "" {
		if b.Address, err = auth.ParseAddress(f.address); err != nil {
			return b, usage("--%v", err)
		}
	}
	if b.Client == "" && b.User == "" && f.address == "" {
		return b, usage("want --client, --user or --address")
	}
	return b, nil
}

func newBanAdd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "add", Short: "Ban whom all given conditions match, and end their connections", Args: cobra.NoArgs,
		Example: `  forebay ban add --client press-7 --for 24h --reason stolen
  forebay ban add --user ann --address 198.51.100.0/24`,
	}
	target, out, flags := addRunning(cmd), addOutput(cmd), addBanFlags(cmd)
	lasts := cmd.Flags().Duration("for", 0, "how long; without it, until it is removed")
	reason := cmd.Flags().String("reason", "", "a note for the list")
	cmd.RunE = does(func(cmd *cobra.Command, _ []string) error {
		b, err := flags.ban()
		if err != nil {
			return err
		}
		if *lasts < 0 {
			return usage("--for %v is negative", *lasts)
		}
		if b.Reason = *reason; *lasts > 0 {
			b.Until = time.Now().Add(*lasts).UTC().Truncate(time.Second)
		}
		c, err := target.open()
		if err != nil {
			return err
		}
		if b, err = c.Ban(contextOf(cmd), b); err != nil {
			return hinted(c, err)
		}
		if out.json {
			return writeJSON(cmd.OutOrStdout(), b)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "banned: %s\n", b)
		return err
	})
	return cmd
}

func newBanRm() *cobra.Command {
	cmd := &cobra.Command{Use: "rm", Short: "Take the bans away that have exactly the given conditions", Args: cobra.NoArgs}
	target, out, flags := addRunning(cmd), addOutput(cmd), addBanFlags(cmd)
	cmd.RunE = does(func(cmd *cobra.Command, _ []string) error {
		b, err := flags.ban()
		if err != nil {
			return err
		}
		c, err := target.open()
		if err != nil {
			return err
		}
		n, err := c.Unban(contextOf(cmd), b)
		if err != nil {
			return hinted(c, err)
		}
		if out.json {
			err = writeJSON(cmd.OutOrStdout(), n)
		} else {
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed: %d\n", n.Removed)
		}
		if err == nil && n.Removed == 0 {
			return &askedError{code: exitFailed}
		}
		return err
	})
	return cmd
}

func newBanMend() *cobra.Command {
	cmd := &cobra.Command{
		Use: "mend FILE", Short: "Make a damaged ban list one that a gateway starts with", Args: cobra.ExactArgs(1),
		Long: `Make a damaged ban list one that a gateway starts with: FILE is set aside as it was, under a name that ends in .damaged and the time, and the
bans that can be read stay. What is left out is shown, to be written anew with ban add. No gateway is asked.`,
	}
	out := addOutput(cmd)
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		m, err := auth.MendBans(args[0], time.Now())
		if err != nil {
			return err
		}
		if out.json {
			return writeJSON(cmd.OutOrStdout(), m)
		}
		for _, fault := range m.Faults {
			fmt.Fprintf(cmd.OutOrStdout(), "left out: %s\n", fault)
		}
		if m.Aside != "" {
			fmt.Fprintf(cmd.OutOrStdout(), "as it was: %s\n", m.Aside)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d bans\n", m.File, m.Kept)
		return err
	})
	return cmd
}

func newReload() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Have a running gateway read its configuration, users, rules, bans, tokens, keys, certificates, CAs and revocation lists again",
		Long: `Have a running gateway read its configuration, users, rules, bans, tokens, keys, certificates, CAs and revocation lists again, as SIGHUP does.
What has a fault is not used, the old content stays in force, and the command fails with the fault.

Of the configuration, downlinks change at once: new ones begin, and those that are gone end. Whatever else is different is named, and waits for a
restart.`,
	}
	return newAskAll(cmd, (*api.Client).Reload, printReloaded)
}

func printReloaded(w io.Writer, r api.Reloaded) error {
	text := "reloaded\n"
	for _, key := range r.Changed {
		text += "in use now: " + key + "\n"
	}
	for _, key := range r.Waiting {
		text += "waits for a restart: " + key + "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}
