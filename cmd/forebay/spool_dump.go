package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/spool"
)

func newSpoolDump() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dump STREAM[/PARTITION]",
		Short: "Print stored records by offset, time, topic or client",
		Long: `Print stored records, partition after partition, each in the order of its offsets. Records stay where they are and no cursor moves.
Segments that are sealed have an index: --filter and --client read only what they need of them. Offsets that are gone for another
reason than retention show as a gap.

Formats: text, one line a record; json (or ndjson), one object a line, the payload as a string or, when it is no text, in base64.`,
		Args: cobra.ExactArgs(1),
	}
	target := addSpoolTarget(cmd)
	query := addQuery(cmd)
	format := cmd.Flags().StringP("output", "o", "text", "text, json or ndjson")
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		if *format != "text" && *format != "json" && *format != "ndjson" {
			return usage("invalid argument %q for --output: want text, json or ndjson", *format)
		}
		q, err := query.of(args[0])
		if err != nil {
			return err
		}
		in, closer, err := target.open()
		if err != nil {
			return err
		}
		w := bufio.NewWriter(cmd.OutOrStdout())
		next, err := in.Dump(contextOf(cmd), q, func(i spool.DumpItem) error {
			if *format == "text" {
				return printItem(w, i)
			}
			return writeLine(w, i)
		})
		if next != nil && err == nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "forebay: --limit reached at %s/%d offset %d\n", q.Stream, next.Partition, next.Offset)
		}
		return errors.Join(err, w.Flush(), closer())
	})
	return cmd
}

func writeLine(w io.Writer, i spool.DumpItem) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(i.Line())
}

func printItem(w io.Writer, i spool.DumpItem) error {
	r := i.Record
	if r == nil {
		_, err := fmt.Fprintf(w, "%s/%d:%d..%d gap: %s\n", i.Stream, i.Partition, i.Gap.From, i.Gap.To-1, i.Gap.Reason)
		return err
	}
	flags := fmt.Sprintf("qos=%d", r.QoS)
	if r.Retain {
		flags += " retain"
	}
	if r.ExpiresAt != 0 {
		flags += " expires=" + stamp(time.Unix(0, r.ExpiresAt))
	}
	_, err := fmt.Fprintf(w, "%s/%d:%d %s %s %s %s %s\n", i.Stream, i.Partition, r.Offset, time.Unix(0, r.ReceivedAt).UTC().Format("2006-01-02T15:04:05.000Z"),
		quoted(r.ClientID), quoted(r.Topic), flags, payloadText(r.Payload))
	return err
}

const payloadShown = 512 // bytes of a payload in a line of text; json has all of it

// payloadText is a payload that cannot harm a terminal.
func payloadText(b []byte) string {
	more := ""
	if len(b) > payloadShown {
		more = fmt.Sprintf(" ... %d bytes", len(b))
		end := payloadShown
		for end > payloadShown-utf8.UTFMax && !utf8.RuneStart(b[end]) { // do not cut a character
			end--
		}
		b = b[:end]
	}
	if !utf8.Valid(b) {
		return fmt.Sprintf("%x%s", b, more)
	}
	return fmt.Sprintf("%q%s", b, more)
}
