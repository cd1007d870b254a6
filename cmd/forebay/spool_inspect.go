package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/spool"
)

func newSpoolInspect() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Look into a segment, a stream, the journal or meta.db",
		Args:  onlyCommands,
		RunE:  help,

		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(newInspectSegment(), newInspectStream(), newInspectJournal(), newInspectMeta())
	return cmd
}

func newInspectSegment() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "segment STREAM/NUMBER | FILE",
		Short: "Header, batches, topics and clients of a segment",
		Long: `Header, batches, topics and clients of a segment: one of the spool by its number, or a file anywhere (a path with .db in it),
such as one in quarantine.`,
		Args: cobra.ExactArgs(1),
	}
	target, out := addSpoolTarget(cmd), addOutput(cmd)
	limit := cmd.Flags().Int("limit", 20, "batches, topics and clients to list, at most 10000 each")
	partition := cmd.Flags().Int("partition", -1, "list only batches of this partition")
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		q := spool.SegmentQuery{Partition: *partition, Limit: *limit}
		d, err := inspectSegment(cmd, target, args[0], q)
		if err != nil {
			return err
		}
		if out.json {
			return writeJSON(cmd.OutOrStdout(), d)
		}
		return printSegment(cmd.OutOrStdout(), d)
	})
	return cmd
}

func inspectSegment(cmd *cobra.Command, target *spoolTarget, arg string, q spool.SegmentQuery) (spool.SegmentDetail, error) {
	if strings.Contains(arg, ".db") {
		if _, err := os.Stat(arg); err != nil {
			return spool.SegmentDetail{}, err
		}
		cfg, err := target.keysConfig()
		if err != nil {
			return spool.SegmentDetail{}, err
		}
		return spool.InspectFile(contextOf(cmd), cfg.Spool.Encryption, arg, q)
	}
	stream, num, _ := strings.Cut(arg, "/")
	seq, err := strconv.ParseUint(num, 10, 64)
	if err != nil {
		return spool.SegmentDetail{}, usage("%q is neither STREAM/NUMBER, as spool ls shows it, nor a file", arg)
	}
	q.Stream, q.Sequence = stream, seq
	in, closer, err := target.open()
	if err != nil {
		return spool.SegmentDetail{}, err
	}
	d, err := in.InspectSegment(contextOf(cmd), q)
	return d, errors.Join(err, closer())
}

func printSegment(w io.Writer, d spool.SegmentDetail) error {
	fmt.Fprintf(w, "segment %s/%d: %s, %s, %d batches, %d records, %s raw, %s stored\n", d.Stream, d.Sequence, d.State, size(d.FileBytes), d.SegmentListing.Batches, d.Records,
		size(int64(d.RawBytes)), size(int64(d.StoredBytes)))
	if d.KeyID != 0 {
		fmt.Fprintf(w, "encrypted with key %d\n", d.KeyID)
	}
	fmt.Fprintf(w, "created %s, sealed %s, records from %s to %s\n", stamp(d.Created), stamp(d.SealedAt), stamp(d.MinTime), stamp(d.MaxTime))
	fmt.Fprintf(w, "applied journal frame %d, %d records live (%.0f%% of the bytes)\n", d.Applied, d.LiveRecords, d.LiveShare*100)
	if d.Problem != "" {
		fmt.Fprintf(w, "problem: %s\n", d.Problem)
	}
	t := table(w, "\nPARTITION\tOFFSETS\tBATCHES\tRECORDS\tRAW\tSTORED\tGAPS\tFROM\tTO")
	for _, p := range d.PartitionDetails {
		fmt.Fprintf(t, "%d\t%d..%d\t%d\t%d\t%s\t%s\t%d\t%s\t%s\n", p.Partition, p.First, p.Next-1, p.Batches, p.Records, size(int64(p.RawBytes)), size(int64(p.StoredBytes)),
			p.Gaps, stamp(p.MinTime), stamp(p.MaxTime))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	t = table(w, "\nBATCH\tOFFSETS\tRECORDS\tSTORED\tCODEC\tFROM\tTO\tEXPIRES")
	for _, b := range d.Batches {
		expires := "never"
		if b.Records > b.Never {
			expires = stamp(b.MaxExpiry)
		}
		fmt.Fprintf(t, "%d/%d\t%d..%d\t%d\t%s\t%s\t%s\t%s\t%s\n", b.Partition, b.First, b.First, b.Next-1, b.Records, size(int64(b.StoredBytes)), stored(b.Codec, b.KeyID),
			stamp(b.MinTime), stamp(b.MaxTime), expires)
	}
	if d.MoreBatches {
		fmt.Fprintln(t, "more: see --limit and --partition")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if err := printPostings(w, "TOPIC", d.SegmentListing.Topics, d.Topics, d.MoreTopics); err != nil {
		return err
	}
	return printPostings(w, "CLIENT", d.SegmentListing.Clients, d.Clients, d.MoreClients)
}

func printPostings(w io.Writer, head string, n int, list []spool.Posting, more bool) error {
	if n < 0 {
		return nil
	}
	t := table(w, "\n"+head+"\tIN BATCHES")
	for _, p := range list {
		fmt.Fprintf(t, "%s\t%d\n", quoted(p.Key), p.Batches)
	}
	if more {
		fmt.Fprintf(t, "of %d: see --limit\n", n)
	}
	return t.Flush()
}

func newInspectStream() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stream STREAM",
		Short: "A stream's partitions, cursors with positions, and all of its segments",
		Args:  cobra.ExactArgs(1),
	}
	target, out := addSpoolTarget(cmd), addOutput(cmd)
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		in, closer, err := target.open()
		if err != nil {
			return err
		}
		defer closer()
		l, err := listSpool(contextOf(cmd), in, args[0], -1)
		if err != nil {
			return err
		}
		if out.json {
			return writeJSON(cmd.OutOrStdout(), l)
		}
		if err := printListing(cmd.OutOrStdout(), l); err != nil {
			return err
		}
		t := table(cmd.OutOrStdout(), "\nCURSOR\tPARTITION\tPOSITION\tLAG")
		for _, c := range l.Cursors {
			for p, o := range c.Positions {
				if st := l.Streams[0]; p < len(st.Partitions) && st.Partitions[p].End > 0 {
					lag := st.Partitions[p].End - min(max(o, st.Partitions[p].Start), st.Partitions[p].End)
					fmt.Fprintf(t, "%s\t%d\t%d\t%d\n", quoted(c.Name), p, o, lag)
				}
			}
		}
		return t.Flush()
	})
	return cmd
}

func newInspectJournal() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "journal",
		Short: "The journal's files, and what its frames hold",
		Args:  cobra.NoArgs,
	}
	target, out := addSpoolTarget(cmd), addOutput(cmd)
	limit := cmd.Flags().Int("limit", 20, "frames to list, at most 10000")
	after := cmd.Flags().Uint64("after", 0, "list frames after this number")
	cmd.RunE = does(func(cmd *cobra.Command, _ []string) error {
		in, closer, err := target.open()
		if err != nil {
			return err
		}
		defer closer()
		d, err := in.InspectJournal(contextOf(cmd), spool.JournalQuery{After: *after, Limit: *limit})
		if err != nil {
			return err
		}
		if out.json {
			return writeJSON(cmd.OutOrStdout(), d)
		}
		return printJournal(cmd.OutOrStdout(), d)
	})
	return cmd
}

func printJournal(w io.Writer, d spool.JournalDetail) error {
	fmt.Fprintf(w, "last frame %d, proven durable %d, applied %d\n", d.Last, d.Proven, d.Applied)
	if len(d.Lost) > 0 {
		fmt.Fprintf(w, "lost: frames %s\n", strings.Join(d.Lost, ", "))
	}
	if d.Torn != "" {
		fmt.Fprintf(w, "torn: %s\n", d.Torn)
	}
	t := table(w, "\nFILE\tSTATE\tSIZE\tGENERATION\tFRAMES\tEND\tSTOP")
	for _, f := range d.Files {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%d\t%s\n", f.Name, stored(f.State, f.KeyID), size(f.Bytes), f.Generation, frames(f.FileListing), f.End, f.Stop)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	t = table(w, "\nFRAME\tAT\tSIZE\tTIME\tHOLDS")
	for _, f := range d.Frames {
		fmt.Fprintf(t, "%d\t%s:%d\t%s\t%s\t%s\n", f.LSN, f.File, f.Offset, size(int64(f.Bytes)), stamp(f.Time), holds(f))
	}
	if d.More {
		fmt.Fprintln(t, "more: see --after and --limit")
	}
	return t.Flush()
}

// holds is what a frame holds in a few words.
func holds(f spool.FrameListing) string {
	var s []string
	for i, r := range f.Records {
		if i == 8 {
			s = append(s, fmt.Sprintf("and %d partitions more", len(f.Records)-i))
			break
		}
		s = append(s, fmt.Sprintf("%s/%d:%d..%d", r.Stream, r.Partition, r.First, uint64(r.First)+uint64(r.Records)-1))
	}
	spaces := map[string]int{}
	var order []string
	for _, c := range f.Changes {
		if spaces[c.Space]++; spaces[c.Space] == 1 {
			order = append(order, c.Space)
		}
	}
	for _, name := range order {
		s = append(s, fmt.Sprintf("%d changes in %q", spaces[name], strings.TrimPrefix(name, "\x00")))
	}
	if f.Problem != "" {
		s = append(s, f.Problem)
	}
	return strings.Join(s, " ")
}

func newInspectMeta() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "meta",
		Short: "meta.db: how far it is, and the spaces of state in it",
		Args:  cobra.NoArgs,
	}
	target, out := addSpoolTarget(cmd), addOutput(cmd)
	q := spool.MetaQuery{}
	cmd.Flags().StringVar(&q.Space, "space", "", "list the keys of this space")
	cmd.Flags().StringVar(&q.After, "after", "", "list keys after this one")
	cmd.Flags().IntVar(&q.Limit, "limit", 20, "keys to list, at most 10000")
	cmd.RunE = does(func(cmd *cobra.Command, _ []string) error {
		in, closer, err := target.open()
		if err != nil {
			return err
		}
		defer closer()
		d, err := in.InspectMeta(contextOf(cmd), q)
		if err != nil {
			return err
		}
		if out.json {
			return writeJSON(cmd.OutOrStdout(), d)
		}
		return printMeta(cmd.OutOrStdout(), d)
	})
	return cmd
}

func printMeta(w io.Writer, d spool.MetaDetail) error {
	fmt.Fprintf(w, "meta.db: %s, format %d, applied journal frame %d, written at %s\n", size(d.Bytes), d.Format, d.Applied, stamp(d.Clock))
	if d.Encrypted {
		fmt.Fprintln(w, "keys and values of the spaces are encrypted")
	}
	fmt.Fprintf(w, "%d segments in the catalog, %d files set aside so far, %d changes only in the journal\n", d.Catalog, d.Quarantined, d.Pending)
	t := table(w, "\nSPACE\tKEYS\tSIZE")
	for _, s := range d.Spaces {
		fmt.Fprintf(t, "%s\t%d\t%s\n", quoted(s.Name), s.Keys, size(s.Bytes))
	}
	if err := t.Flush(); err != nil || len(d.Keys) == 0 {
		return err
	}
	t = table(w, "\nKEY\tSIZE OF VALUE")
	for _, k := range d.Keys {
		fmt.Fprintf(t, "%s\t%s\n", quoted(k.Key), size(int64(k.Bytes)))
	}
	if d.More {
		fmt.Fprintln(t, "more: see --after and --limit")
	}
	return t.Flush()
}
