package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/spool"
)

// queryFlags are the flags that select records.
type queryFlags struct {
	q            spool.DumpQuery
	since, until string
}

func addQuery(cmd *cobra.Command) *queryFlags {
	f := new(queryFlags)
	fs := cmd.Flags()
	fs.Uint64Var((*uint64)(&f.q.From), "from", 0, "first offset")
	fs.Uint64Var((*uint64)(&f.q.To), "to", 0, "offset to stop before; 0 is the end")
	fs.StringVar(&f.since, "since", "", "received at or after: a time, or how long ago")
	fs.StringVar(&f.until, "until", "", "received before: a time, or how long ago")
	fs.StringVar(&f.q.Filter, "filter", "", "MQTT topic filter")
	fs.StringVar(&f.q.Client, "client", "", "client ID of the publisher")
	fs.BoolVar(&f.q.Expired, "expired", false, "records whose time is over too, as long as they are there")
	fs.IntVarP(&f.q.Limit, "limit", "n", 0, "most records; 0 is all")
	return f
}

func (f *queryFlags) of(arg string) (q spool.DumpQuery, err error) {
	q = f.q
	if q.Stream, q.Partition, err = parsePartition(arg); err != nil {
		return q, err
	}
	now := time.Now()
	if q.Since, err = parseTime(f.since, now); err != nil {
		return q, err
	}
	if q.Until, err = parseTime(f.until, now); err != nil {
		return q, err
	}
	switch {
	case q.Limit < 0:
		return q, usage("--limit: %d is negative; 0 is all", q.Limit)
	case q.To != 0 && q.From >= q.To:
		return q, usage("--from %d and --to %d: nothing is between them, --to is the offset to stop before", q.From, q.To)
	case !q.Since.IsZero() && !q.Until.IsZero() && !q.Since.Before(q.Until):
		return q, usage("--since %s and --until %s: nothing is between them", f.since, f.until)
	}
	if q.Filter != "" {
		if err := spool.CheckFilter(q.Filter); err != nil {
			return q, usage("--filter: %w", err)
		}
	}
	return q, nil
}
