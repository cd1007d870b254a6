package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/gateway/api"
	"github.com/forebay-gateway/forebay/spool"
)

// spoolVerified is the JSON result of spool verify.
type spoolVerified struct {
	OK bool `json:"ok"`
	spool.VerifyResult
}

func newSpoolVerify() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify [STREAM]",
		Short: "Read and check everything: batches, records, offsets, indexes, catalog, journal",
		Long: `Read and check everything: the checksum of every batch and its records, the chain of offsets, indexes, the catalog against the
files, the frames of the journal. Each finding is one line: the file, the offsets, and what the next start of the gateway does about it.

While a gateway runs, its sealed segments are checked, and it is asked to check its active ones; meta.db and the journal are left out, and named.

Exits with 1 when something is damaged.`,
		Args: cobra.MaximumNArgs(1),
	}
	target, out := addSpoolTarget(cmd), addOutput(cmd)
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		b := newBar(cmd.ErrOrStderr())
		o := spool.VerifyOptions{Progress: b.show}
		if len(args) == 1 {
			o.Stream = args[0]
		}
		r, err := verify(cmd, target, o)
		b.end()
		if err != nil {
			return err
		}
		if out.json {
			err = writeJSON(cmd.OutOrStdout(), spoolVerified{!r.Damaged(), r})
		} else {
			err = printVerified(cmd.OutOrStdout(), r)
		}
		if err == nil && r.Damaged() {
			return &askedError{code: exitFailed} // the result has said it
		}
		return err
	})
	return cmd
}

func verify(cmd *cobra.Command, target *spoolTarget, o spool.VerifyOptions) (r spool.VerifyResult, err error) {
	cfg, err := target.config()
	if err != nil {
		return r, err
	}
	v, err := spool.OpenView(cfg.Spool, spool.Options{})
	if errors.Is(err, spool.ErrInUse) {
		c, cerr := target.client(cfg)
		if cerr == nil {
			o.SHA256 = hashesOf(c)
		}
		r, err := spool.VerifyRunning(contextOf(cmd), cfg.Spool, o)
		if err == nil && cerr == nil {
			verifyActive(contextOf(cmd), c, &r)
		}
		return r, err
	}
	if err != nil {
		return r, err
	}
	r, err = v.Verify(contextOf(cmd), o)
	return r, errors.Join(err, v.Close())
}

// hashesOf asks the gateway for the hashes in its catalog, a stream at a time.
func hashesOf(c *api.Client) func(context.Context, string, uint64) string {
	sums := make(map[string]map[uint64]string)
	return func(ctx context.Context, stream string, seq uint64) string {
		if sums[stream] == nil {
			sums[stream] = make(map[uint64]string)
			for after, more := "", true; more; {
				page, err := c.ListSegments(ctx, spool.SegmentsQuery{Stream: stream, After: after, Limit: 1000})
				if err != nil {
					break // batches are checked all the same
				}
				for _, l := range page.Segments {
					sums[stream][l.Sequence] = l.SHA256
				}
				after, more = page.Next, page.Next != ""
			}
		}
		return sums[stream][seq]
	}
}

// verifyActive has the gateway check the segments that it has in use. What it does not answer for stays left out.
func verifyActive(ctx context.Context, c *api.Client, r *spool.VerifyResult) {
	skipped := r.Skipped
	r.Skipped = []string{}
	for _, path := range skipped {
		if stream, seq, ok := spool.SegmentOf(path); ok {
			if one, err := c.VerifySegment(ctx, stream, seq); err == nil {
				r.Add(one)
				continue
			}
		}
		r.Skipped = append(r.Skipped, path)
	}
}

func printVerified(w io.Writer, r spool.VerifyResult) error {
	for _, f := range r.Findings {
		fmt.Fprintln(w, f)
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "in use, not checked: %s\n", s)
	}
	verdict := "nothing is damaged"
	if n := count(r.Findings, spool.SeverityDamage); n > 0 {
		verdict = plural(n, "damaged place")
	}
	_, err := fmt.Fprintf(w, "%s: %s; read %s (%d held against their hash), %s, %s, %s, %s\n", r.Dir, verdict, plural(r.Segments, "segment"), r.Hashed,
		plural(r.Batches, "batch"), plural(r.Records, "record"), plural(r.Frames, "journal frame"), size(r.Bytes))
	return err
}

func plural[N int | uint64](n N, one string) string {
	switch {
	case n == 1:
		return "1 " + one
	case strings.HasSuffix(one, "ch"):
		return fmt.Sprintf("%d %ses", n, one)
	}
	return fmt.Sprintf("%d %ss", n, one)
}

func count(findings []spool.Finding, s spool.Severity) (n int) {
	for _, f := range findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}
