package mqtt

import (
	"encoding/binary"

	"github.com/forebay-gateway/forebay/spool"
)

// positions is an offset on each lane.
type positions []spool.Offset

// lanes are all lanes of the log. The list does not change while the server runs.
type lanes struct {
	list  []*lane
	first map[string]int // stream → its first lane
	count map[string]int // stream → its lanes
}

func (ls *lanes) find(stream string, partition int) (int, bool) {
	i, ok := ls.first[stream]
	if !ok || partition < 0 || partition >= ls.count[stream] {
		return 0, false
	}
	return i + partition, true
}

// appendPositions encodes p by stream, so that it can be read after the configured streams have changed.
//
//	streams uvarint × ( name | partitions uvarint × next offset uvarint )
func (ls *lanes) appendPositions(b []byte, p positions) []byte {
	b = binary.AppendUvarint(b, uint64(len(ls.first)))
	for i := 0; i < len(ls.list); {
		l := ls.list[i]
		n := ls.count[l.stream]
		b = appendString(b, l.stream)
		b = binary.AppendUvarint(b, uint64(n))
		for range n {
			b = binary.AppendUvarint(b, uint64(p[i]))
			i++
		}
	}
	return b
}

// positions decodes into a copy of base, which holds the position for lanes that the value does not know.
func (ls *lanes) positions(d *decoder, base positions) positions {
	p := append(positions{}, base...)
	for n := d.uvarint(); n > 0 && d.err == nil; n-- {
		stream := d.string()
		for i := range d.uvarint() {
			if d.err != nil {
				break
			}
			off := spool.Offset(d.uvarint())
			if l, ok := ls.find(stream, int(i)); ok {
				p[l] = off
			}
		}
	}
	return p
}

// appendPlace encodes where a delivery's record is: its lane and offset, or the topic of a retained message.
func (ls *lanes) appendPlace(b []byte, fl *flight) []byte {
	if fl.lane == noLane {
		b = append(b, 1)
		return appendString(b, fl.rec.Topic)
	}
	l := ls.list[fl.lane]
	b = append(b, 0)
	b = appendString(b, l.stream)
	b = binary.AppendUvarint(b, uint64(l.partition))
	return binary.AppendUvarint(b, uint64(fl.off))
}

// place decodes what appendPlace encoded. A lane that is no more gives ok == false.
func (ls *lanes) place(d *decoder) (lane int32, off spool.Offset, topic string, ok bool) {
	if d.byte() == 1 {
		return noLane, 0, d.string(), d.err == nil
	}
	stream := d.string()
	partition := d.uvarint()
	off = spool.Offset(d.uvarint())
	l, ok := ls.find(stream, int(partition))
	return int32(l), off, "", ok && d.err == nil
}
