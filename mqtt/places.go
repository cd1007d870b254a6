package mqtt

import (
	"fmt"
	"syscall"
)

// Every connection has a place from Accept to its end: whatever comes before MQTT on it, it costs a file descriptor. The spool
// and Kafka need some, too, and a gateway that has none left acknowledges nothing any more.

// The file descriptors that are kept back: a sixteenth, 256 at least, but never more than half.
const (
	leastReserve = 256
	reserveShare = 16
)

// openLimit is how many connections all listeners may have together: what is configured, and no more than the limit of open
// files leaves. 0 is no limit.
func openLimit(configured int, files uint64) int64 {
	if files == 0 || files > 1<<40 { // not known, or none
		return int64(configured)
	}
	reserve := min(max(files/reserveShare, leastReserve), files/2)
	limit := int64(files - reserve)
	if configured > 0 {
		limit = min(limit, int64(configured))
	}
	return limit
}

// openFiles is the limit of open files of this process; 0 when it is not known. The Go runtime has raised it as far as it may.
func openFiles() uint64 {
	var r syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r) != nil {
		return 0
	}
	return uint64(r.Cur)
}

// limitOpen finds the limit and says so when it is not what the operator wanted.
func (srv *Server) limitOpen(files uint64) {
	srv.openLimit = openLimit(srv.cfg.MaxConnections, files)
	if want := srv.cfg.MaxConnections; want > 0 && srv.openLimit < int64(want) {
		srv.log.Warn("mqtt.max_connections is more than the limit of open files leaves", "max_connections", want, "limit", srv.openLimit,
			"open_files", files, "hint", "raise LimitNOFILE, or ulimit -n")
	}
}

// enter gives a new connection a place, or says that there is none.
func (l *listener) enter() error {
	own, all := l.n.Add(1), l.srv.opened.Add(1)
	var problem, hint string
	switch limit := int64(l.cfg.MaxConnections); {
	case limit > 0 && own > limit:
		problem, hint = fmt.Sprintf("%d connections are open", limit), "raise max_connections of the listener if they are devices"
	case l.srv.openLimit > 0 && all > l.srv.openLimit:
		problem, hint = fmt.Sprintf("%d connections are open on all listeners", l.srv.openLimit),
			"raise mqtt.max_connections, or the limit of open files"
	default:
		return nil
	}
	l.leave()
	l.srv.metrics.overLimit.Inc()
	if others, ok := l.complaints.allow("over limit"); ok {
		l.srv.log.Warn("connection refused, there are too many", "listener", l.cfg.Name, "problem", problem, "hint", hint, "others", others)
	}
	return errTooManyConnections
}

// leave gives the place back.
func (l *listener) leave() {
	l.n.Add(-1)
	l.srv.opened.Add(-1)
}
