package mqtt

import (
	"github.com/forebay-gateway/forebay/spool"
)

// fetcher reads single records; those of one batch cost one read.
type fetcher struct {
	lane  int32
	r     LogReader
	batch spool.Batch
}

// fetch returns the record at that place, nil when it has expired or is gone.
func (f *fetcher) fetch(srv *Server, lane int32, off spool.Offset) (*spool.Record, error) {
	if f.r != nil && f.lane != lane {
		f.close()
	}
	if f.r == nil {
		l := srv.lanes.list[lane]
		r, err := srv.spool.NewReader(l.stream, l.partition, off)
		if err != nil {
			return nil, err
		}
		f.r, f.lane, f.batch = r, lane, spool.Batch{}
	}
	if off < f.batch.First || off >= f.batch.Next {
		if f.r.Offset() != off {
			f.r.Seek(off)
		}
		b, ok, err := f.r.TryNext()
		if err != nil || !ok {
			return nil, err
		}
		f.batch = b
	}
	for i := range f.batch.Records {
		if f.batch.Records[i].Offset == off {
			return &f.batch.Records[i], nil
		}
	}
	return nil, nil
}

func (f *fetcher) close() {
	if f.r != nil {
		f.r.Close()
		f.r = nil
	}
}
