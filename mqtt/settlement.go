package mqtt

// settlement is what has to be done for share groups once srv.mu and the session's lock are free.
type settlement struct {
	s       *session
	groups  []*group
	orphans []orphan
}

func (srv *Server) settleLater(s *session, orphans []orphan) {
	if len(s.groups) == 0 && len(orphans) == 0 {
		return
	}
	srv.settlements = append(srv.settlements, settlement{s: s, groups: append([]*group{}, s.groups...), orphans: orphans})
}

// unlockAndSettle releases srv.mu and then does what settleLater noted.
func (srv *Server) unlockAndSettle() {
	list := srv.settlements
	srv.settlements = nil
	srv.mu.Unlock()
	for _, st := range list {
		st.s.mu.Lock()
		ended := st.s.ended
		st.s.mu.Unlock()
		for _, g := range st.groups {
			if ended {
				srv.leaveGroup(g, st.s)
			} else {
				g.refresh()
			}
		}
		for _, o := range st.orphans {
			o.group.giveBack([]place{o.at})
		}
	}
}
