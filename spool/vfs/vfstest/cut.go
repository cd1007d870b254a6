package vfstest

import (
	"maps"
	"math/rand/v2"
	"path/filepath"
)

// Keep says how much of what was not synced a power cut leaves on the disk.
type Keep uint8

const (
	KeepNone Keep = iota // only what was synced
	KeepSome             // a random choice of the sectors, and of the names
	KeepAll              // as if the process alone had been killed
)

// String names k for test output.
func (k Keep) String() string { return [...]string{"none", "some", "all"}[k] }

// pending is what was done to a file since its last good sync.
type pending struct {
	durable inode
	ops     []op
}

// Cut returns the disk as it may be found when the power fails right after the first n calls, in a new Disk with an empty
// log. The directories are those of now. rnd is needed for KeepSome.
//
// After a sync that failed, what was pending stays pending for ever: the file system has marked the pages clean and a
// later sync does not write them again. Writes after it become durable as usual.
func (d *Disk) Cut(n int, keep Keep, rnd *rand.Rand) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n < d.start {
		panic("BUG: vfstest: cut in a part of the log that was forgotten")
	}
	files := map[*inode]*pending{}
	names := map[string]*inode{} // durable
	open := map[string][]op{}    // directory -> name changes that are not
	limbo := map[*inode][]op{}   // pending when a sync failed
	get := func(i *inode) *pending {
		if files[i] == nil {
			files[i] = &pending{}
		}
		return files[i]
	}
	for _, o := range d.log[:n] {
		switch o.kind {
		case Write, Truncate:
			p := get(o.ino)
			p.ops = append(p.ops, o)
		case Datasync, Sync:
			p := get(o.ino)
			if o.bad {
				limbo[o.ino] = append(limbo[o.ino], p.ops...)
				p.ops = nil
				continue
			}
			// Limbo first: a later write of the same sector covers it.
			p.settle(limbo[o.ino], keep, rnd)
			delete(limbo, o.ino)
			p.settle(p.ops, KeepAll, nil)
			p.ops = nil
		case Create, Remove, Rename:
			dir := filepath.Dir(o.name) // a rename between directories hangs on its source
			open[dir] = append(open[dir], o)
		case SyncDir:
			apply(names, open[o.name])
			delete(open, o.name)
		}
	}
	for _, ops := range open {
		switch keep {
		case KeepAll:
			apply(names, ops)
		case KeepSome: // file systems log name changes in order: a first part is kept
			apply(names, ops[:rnd.IntN(len(ops)+1)])
		}
	}
	out := NewDisk()
	out.limit, out.dirs = d.limit, maps.Clone(d.dirs)
	for name, i := range names {
		p := get(i)
		p.settle(limbo[i], keep, rnd)
		p.settle(p.ops, keep, rnd)
		out.names[name] = &inode{data: append([]byte(nil), p.durable.data...)}
		out.names[name].base(out, name)
	}
	out.start = len(out.log)
	return out
}

// base puts the content of i into the log of out, as durable, so that a cut of out starts from it.
func (i *inode) base(out *Disk, name string) {
	out.record(op{kind: Create, name: name, ino: i})
	out.record(op{kind: Write, name: name, ino: i, data: append([]byte(nil), i.data...)})
	out.record(op{kind: Sync, name: name, ino: i})
	out.record(op{kind: SyncDir, name: filepath.Dir(name)})
}

func apply(names map[string]*inode, ops []op) {
	for _, o := range ops {
		switch o.kind {
		case Create:
			names[o.name] = o.ino
		case Remove:
			delete(names, o.name)
		case Rename:
			delete(names, o.name)
			names[o.to] = o.ino
		}
	}
}

// settle applies ops to what is durable: all, none, or some of their sectors. The size of the file is a change of its own
// that may or may not have reached the disk.
func (p *pending) settle(ops []op, keep Keep, rnd *rand.Rand) {
	if keep == KeepNone {
		return
	}
	size := int64(len(p.durable.data))
	for _, o := range ops {
		kept := keep == KeepAll || rnd.IntN(2) == 0
		switch {
		case o.kind == Truncate:
			if kept {
				size = o.size
				p.durable.truncate(size)
			}
		case keep == KeepAll:
			p.durable.write(o.data, o.off)
			size = int64(len(p.durable.data))
		default:
			if end := o.off + int64(len(o.data)); kept && end > size {
				size = end
			}
			for at := int64(0); at < int64(len(o.data)); {
				n := min(Sector-(o.off+at)%Sector, int64(len(o.data))-at)
				if rnd.IntN(2) == 0 {
					p.durable.write(o.data[at:at+n], o.off+at)
				}
				at += n
			}
		}
	}
	p.durable.truncate(size)
}
