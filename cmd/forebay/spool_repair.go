package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/gateway"
	"github.com/forebay-gateway/forebay/spool"
)

func newSpoolRepair() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "repair --dry-run | --yes",
		Short: "Say, or do, what is needed to make a damaged spool whole",
		Long: `Say (--dry-run), or do (--yes), what is needed to make a damaged spool whole: what the next start of the gateway does (damaged files
are set aside, the journal is applied), and what it leaves for later: segments with damaged batches are set aside and what can be read
of them is kept, missing indexes are written. Nothing is deleted: what is replaced is in quarantine/ of the spool afterwards.

It needs the configuration that serve has, and that no gateway runs.`,
		Args: cobra.NoArgs,
	}
	target, out := addSpoolTarget(cmd), addOutput(cmd)
	dry := cmd.Flags().Bool("dry-run", false, "change nothing, say what would be done")
	yes := cmd.Flags().Bool("yes", false, "do it")
	cmd.RunE = does(func(cmd *cobra.Command, _ []string) error {
		if *dry == *yes {
			return usage("want either --dry-run or --yes")
		}
		cfg, err := target.config()
		if err != nil {
			return err
		}
		if *yes && target.dir != "" && target.flags.File == "" {
			return usage("--yes needs the configuration that serve has: give --config")
		}
		b := newBar(cmd.ErrOrStderr())
		o := spool.VerifyOptions{Progress: b.show}
		var r spool.RepairResult
		if *dry {
			r, err = spool.PlanRepair(contextOf(cmd), cfg.Spool, spool.Options{}, o)
		} else {
			r, err = spool.Repair(contextOf(cmd), cfg.Spool, spool.Options{Logger: gateway.NewLogger(cfg.Log, cmd.ErrOrStderr())}, o)
		}
		b.end()
		if errors.Is(err, spool.ErrInUse) {
			return fmt.Errorf("%w: stop the gateway first", err)
		}
		if err != nil {
			return err
		}
		if out.json {
			return writeJSON(cmd.OutOrStdout(), r)
		}
		return printRepair(cmd.OutOrStdout(), r)
	})
	return cmd
}

func printRepair(w io.Writer, r spool.RepairResult) error {
	if len(r.Actions) == 0 {
		_, err := fmt.Fprintf(w, "%s: nothing to repair\n", r.Dir)
		return err
	}
	failed := 0
	for _, a := range r.Actions {
		state := "would"
		switch {
		case a.Err != "":
			state = "failed"
			failed++
		case a.Done:
			state = "done"
		}
		fmt.Fprintf(w, "%s: %s: %s", state, a.Path, a.What)
		if a.Err != "" {
			fmt.Fprintf(w, ": %s", a.Err)
		}
		fmt.Fprintln(w)
	}
	if failed > 0 {
		return &askedError{err: fmt.Errorf("%d of %d steps failed", failed, len(r.Actions)), code: exitFailed}
	}
	return nil
}
