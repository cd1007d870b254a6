package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/spool/crypt"
)

func newSpoolKeygen() *cobra.Command {
	return &cobra.Command{
		Use:   "keygen FILE",
		Short: "Make a key for spool.encryption in a new file",
		Long: `Make a key for spool.encryption in a new file that only its owner may read. A file that exists is left alone.

Without the key nothing of the spool can be read again: keep a copy, not on the disk of the spool.`,
		Args: cobra.ExactArgs(1),
		RunE: does(func(cmd *cobra.Command, args []string) error {
			f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			_, err = f.Write(crypt.NewKey())
			if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
				return errors.Join(err, os.Remove(args[0]))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: new key\n", args[0])
			return err
		}),
	}
}
