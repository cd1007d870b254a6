package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/spool"
)

// spoolListing is the JSON result of spool ls.
type spoolListing struct {
	spool.Listing
	Segments     []spool.SegmentListing `json:"segments"`
	MoreSegments bool                   `json:"more_segments"` // --segments has cut the list
}

func newSpoolLs() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls [STREAM]",
		Short: "List streams, partitions, segments, cursors and journal files",
		Args:  cobra.MaximumNArgs(1),
	}
	target, out := addSpoolTarget(cmd), addOutput(cmd)
	limit := cmd.Flags().Int("segments", 100, "segments to list, the oldest of each stream first; 0 is none, -1 all")
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		in, closer, err := target.open()
		if err != nil {
			return err
		}
		defer closer()
		stream := ""
		if len(args) == 1 {
			stream = args[0]
		}
		l, err := listSpool(contextOf(cmd), in, stream, *limit)
		if err != nil {
			return err
		}
		if out.json {
			return writeJSON(cmd.OutOrStdout(), l)
		}
		return printListing(cmd.OutOrStdout(), l)
	})
	return cmd
}

// contextOf is the command's context: cobra has none when nobody gave one.
func contextOf(cmd *cobra.Command) context.Context {
	if ctx := cmd.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}

func listSpool(ctx context.Context, in spool.Inspector, stream string, limit int) (spoolListing, error) {
	listing, err := in.List(ctx)
	if err != nil {
		return spoolListing{}, err
	}
	l := spoolListing{Listing: listing, Segments: []spool.SegmentListing{}}
	if stream != "" {
		l.Streams, l.Cursors = only(l.Streams, l.Cursors, stream)
		if len(l.Streams) == 0 {
			return l, fmt.Errorf("stream %q: %w", stream, spool.ErrUnknownStream)
		}
	}
	for q := (spool.SegmentsQuery{Stream: stream}); limit != 0; {
		if q.Limit = 1000; limit > 0 {
			q.Limit = min(q.Limit, limit-len(l.Segments))
		}
		page, err := in.ListSegments(ctx, q)
		if err != nil {
			return l, err
		}
		l.Segments = append(l.Segments, page.Segments...)
		if q.After = page.Next; q.After == "" {
			break
		}
		if limit > 0 && len(l.Segments) >= limit {
			l.MoreSegments = true
			break
		}
	}
	return l, nil
}

func only(streams []spool.StreamListing, cursors []spool.CursorListing, name string) ([]spool.StreamListing, []spool.CursorListing) {
	s, c := []spool.StreamListing{}, []spool.CursorListing{}
	for _, st := range streams {
		if st.Name == name {
			s = append(s, st)
		}
	}
	for _, cu := range cursors {
		if cu.Stream == name {
			c = append(c, cu)
		}
	}
	return s, c
}

func printListing(w io.Writer, l spoolListing) error {
	state := "stopped, as the next start would find it"
	if l.Running {
		state = "running"
	}
	fmt.Fprintf(w, "%s: %s; %s on disk of %s\n", l.Dir, state, size(l.BytesOnDisk), size(l.MaxSize))
	head := "\nSTREAM\tPARTITION\tSTART\tEND\tRECORDS\tIN JOURNAL\t"
	if l.Running {
		head += "NEW\tRATE\tSHARE\t"
	}
	t := table(w, head+"NOTE")
	for _, st := range l.Streams {
		empty := 0
		for _, p := range st.Partitions {
			if p.End == 0 && len(p.Lost) == 0 {
				empty++
				continue
			}
			fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t", st.Name, p.Partition, p.Start, p.End, p.Records, p.InJournal)
			notes := gaps(p.Lost)
			if l.Running {
				fmt.Fprintf(t, "%d\t%.0f/s %s/s\t%.0f%%\t", p.Appended, p.RecordRate, size(int64(p.ByteRate)), 100*p.Share)
				if p.Hot {
					notes = append([]string{"hot: far more than its share"}, notes...)
				}
			}
			fmt.Fprintln(t, strings.Join(notes, ", "))
		}
		note := fmt.Sprintf("%s in %d segments", size(st.Bytes), st.Segments)
		if empty > 0 {
			note += fmt.Sprintf(", %d partitions empty", empty)
		}
		if !st.Configured {
			note += ", not in the configuration"
		}
		columns := ""
		if l.Running {
			columns = "\t\t\t"
		}
		fmt.Fprintf(t, "%s\tall\t\t\t%d\t\t%s%s\n", st.Name, st.Records, columns, note)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if err := printSegments(w, l); err != nil {
		return err
	}
	t = table(w, "\nCURSOR\tSTREAM\tPROTECTS\tLAG")
	for _, c := range l.Cursors {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\n", quoted(c.Name), c.Stream, yesNo(c.Protect), c.Lag)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nJOURNAL: %s, last frame %d, applied %d\n", size(l.Journal.Bytes), l.Journal.Last, l.Journal.Applied)
	t = table(w, "FILE\tSTATE\tSIZE\tFRAMES")
	for _, f := range l.Journal.Files {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", f.Name, stored(f.State, f.KeyID), size(f.Bytes), frames(f))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(l.Quarantine) > 0 {
		fmt.Fprintln(w, "\nQUARANTINE")
		for _, f := range l.Quarantine {
			fmt.Fprintf(w, "%s  %s  %s\n", f.Name, size(f.Bytes), stamp(f.Time))
		}
	}
	printFindings(w, l.Findings)
	return nil
}

func printSegments(w io.Writer, l spoolListing) error {
	if len(l.Segments) == 0 {
		return nil
	}
	t := table(w, "\nSEGMENT\tSTATE\tSIZE\tRECORDS\tLIVE\tCODEC\tFROM\tTO\tOFFSETS")
	for _, s := range l.Segments {
		var offsets []string
		for i, p := range s.Partitions {
			if i == 8 {
				offsets = append(offsets, fmt.Sprintf("and %d more", len(s.Partitions)-i))
				break
			}
			offsets = append(offsets, fmt.Sprintf("%d:%d..%d", p.Partition, p.First, p.Next-1))
		}
		if s.Problem != "" {
			offsets = append(offsets, s.Problem)
		}
		fmt.Fprintf(t, "%s/%d\t%s\t%s\t%d\t%.0f%%\t%s\t%s\t%s\t%s\n", s.Stream, s.Sequence, s.State, size(s.FileBytes), s.Records, s.LiveShare*100, stored(s.Codec, s.KeyID),
			stamp(s.MinTime), stamp(s.MaxTime), strings.Join(offsets, " "))
	}
	if l.MoreSegments {
		fmt.Fprintln(t, "more: --segments -1 lists all")
	}
	return t.Flush()
}

func printFindings(w io.Writer, findings []spool.Finding) {
	if len(findings) > 0 {
		fmt.Fprintln(w, "\nFINDINGS")
	}
	for _, f := range findings {
		fmt.Fprintln(w, f)
	}
}

func table(w io.Writer, head string) *tabwriter.Writer {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if strings.HasPrefix(head, "\n") {
		fmt.Fprintln(w)
		head = head[1:]
	}
	fmt.Fprintln(t, head)
	return t
}

// size is a number of bytes for people.
func size(n int64) string {
	const k = 1 << 10
	switch {
	case n < k:
		return fmt.Sprintf("%dB", n)
	case n < k*k:
		return fmt.Sprintf("%.1fKiB", float64(n)/k)
	case n < k*k*k:
		return fmt.Sprintf("%.1fMiB", float64(n)/(k*k))
	}
	return fmt.Sprintf("%.1fGiB", float64(n)/(k*k*k))
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05Z")
}

// stored is how something is stored, with the key when it is encrypted.
func stored(how string, key uint32) string {
	if key == 0 {
		return how
	}
	return fmt.Sprintf("%s, key %d", how, key)
}

// frames are those of a journal file.
func frames(f spool.FileListing) string {
	switch {
	case f.First == 0:
		return "-"
	case f.Last < f.First:
		return fmt.Sprintf("from %d", f.First)
	}
	return fmt.Sprintf("%d..%d", f.First, f.Last)
}

func gaps(lost []spool.GapListing) (s []string) {
	for _, g := range lost {
		s = append(s, fmt.Sprintf("%d..%d %s", g.From, g.To-1, g.Reason))
	}
	return s
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// quoted is a name that a client chose, as it cannot harm a terminal.
func quoted(s string) string {
	if q := fmt.Sprintf("%q", s); strings.ContainsAny(s, " \t\"\\") || q[1:len(q)-1] != s {
		return q
	}
	return s
}
