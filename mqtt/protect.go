package mqtt

import (
	"context"
	"fmt"

	"github.com/forebay-gateway/forebay/spool"
)

// lowWater holds, for each stream, the cursor of what all sessions have got: it keeps records in the spool that some
// session still has to get, and shows the operator how far the last one is behind. One cursor for all sessions, because
// thousands of them would cost a commit each.
type lowWater struct {
	cursors map[string]LogCursor // by stream
}

func (srv *Server) openLowWater(ctx context.Context) (*lowWater, error) {
	w := &lowWater{cursors: make(map[string]LogCursor)}
	for stream := range srv.lanes.first {
		c, err := srv.spool.OpenCursor(ctx, "mqtt-sessions/"+stream, stream, spool.CursorOptions{
			From:    spool.Beginning,
			Protect: srv.cfg.ProtectSessions > 0,
		})
		if err != nil {
			return nil, fmt.Errorf("cursor of the sessions: %w", err)
		}
		w.cursors[stream] = c
	}
	return w, nil
}

// commitLowWater moves the cursors to the lowest position that counts.
func (srv *Server) commitLowWater() {
	low := srv.lanes.ends() // before the sessions: a session that is made meanwhile begins above it
	atMost := func(i int, off spool.Offset) { low[i] = min(low[i], off) }

	sessions := srv.allSessions()
	limit := srv.own().UnixNano() - int64(srv.cfg.ProtectSessions.Std())
	for _, s := range sessions {
		s.mu.Lock()
		if s.feed != nil && !s.ended && (s.conn != nil || s.offlineSince > limit) {
			for i := range low {
				atMost(i, s.positionLocked(i))
			}
			s.flights.all(func(fl *flight) {
				if fl.lane != noLane && fl.state != flightCompleted {
					atMost(int(fl.lane), fl.off)
				}
			})
		}
		s.mu.Unlock()
	}
	for _, g := range srv.allGroups() {
		g.mu.Lock()
		if g.feed != nil && !g.gone && (g.online.Load() > 0 || g.offlineSince > limit) {
			for i := range low {
				atMost(i, g.positionLocked(i))
			}
			for _, at := range g.orphans {
				atMost(int(at.lane), at.off)
			}
		}
		g.mu.Unlock()
	}
	for i, l := range srv.lanes.list {
		srv.low.cursors[l.stream].Commit(l.partition, low[i])
	}
}
