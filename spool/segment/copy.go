package segment

import "io"

// ReadAt reads the bytes of the file as they are on the disk, for a copy of a sealed segment. It holds nothing that a reader or a
// removal waits for, but for the time of one call.
func (s *Segment) ReadAt(p []byte, off int64) (int, error) {
	if err := s.rlock(); err != nil {
		return 0, err
	}
	defer s.mu.RUnlock()
	if s.raw == nil {
		return 0, ErrClosed
	}
	return s.raw.ReadAt(p, off)
}

var _ io.ReaderAt = (*Segment)(nil)
