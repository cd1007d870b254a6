package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering/export"
)

func newTierExport() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export STREAM[/PARTITION] FILE",
		Short: "Write records as a Parquet file or JSON lines",
		Long: `Write records, from object storage and the spool, as a Parquet file or JSON lines: time, partition, offset, client, user, topic, QoS,
properties, payload, and a column for each --field of payloads that are JSON. The file has its name only when it is whole.

A field is PATH[:TYPE][=COLUMN] with the type string (default), double, long or boolean: --field motor.speed:double makes the column
json_motor_speed. A dot, colon or equals sign in a key has a backslash before it.`,
		Args: cobra.ExactArgs(2),
	}
	target := addTierTarget(cmd)
	query := addQuery(cmd)
	format := cmd.Flags().String("format", "parquet", "parquet or ndjson")
	specs := cmd.Flags().StringArray("field", nil, "column of a JSON field, again for each")
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		if *format != "parquet" && *format != "ndjson" {
			return usage("invalid argument %q for --format: want parquet or ndjson", *format)
		}
		q, err := query.of(args[0])
		if err != nil {
			return err
		}
		fields, err := export.ParseFields(*specs)
		if err != nil {
			return usage("--field: %w", err)
		}
		var records int64
		gaps := 0
		err = export.File(args[1], func(w io.Writer) error {
			var out export.Writer = export.NewParquet(w, q.Stream, fields)
			if *format == "ndjson" {
				out = export.NewLines(w, q.Stream, fields)
			}
			if _, err := target.dump(contextOf(cmd), q, func(i spool.DumpItem) error {
				if i.Record == nil {
					gaps++
					_, err := fmt.Fprintf(cmd.ErrOrStderr(), "forebay: %s/%d: offsets %d to %d are not there: %s\n", i.Stream, i.Partition, i.Gap.From, i.Gap.To-1, i.Gap.Reason)
					return err
				}
				return out.Write(i.Partition, i.Record)
			}); err != nil {
				return err
			}
			records = out.Records()
			return out.Close()
		})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d records, %d gaps\n", args[1], records, gaps)
		return err
	})
	return cmd
}
