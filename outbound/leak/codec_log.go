package leak

import (
	"encoding/binary"
	"time"
)

// append appends the logs: their number, and of each its name, unit, longest window, skip and total,
// its calendar, and its entries, whose times are differences from the dial and from the entry
// before.
func (g *Logs) append(b []byte, dial time.Duration) []byte {
	b = binary.AppendUvarint(b, uint64(len(*g)))
	for i := range *g {
		b = (*g)[i].append(b, dial)
	}
	return b
}

func (g *Log) append(b []byte, dial time.Duration) []byte {
	b = binary.AppendUvarint(b, uint64(len(g.Name)))
	b = append(b, g.Name...)
	b = binary.AppendVarint(b, int64(g.Unit))
	b = binary.AppendVarint(b, int64(g.Longest))
	b = binary.AppendVarint(b, int64(g.Skip))
	b = appendFloat(b, g.Total)
	c := &g.Calendar
	b = binary.AppendVarint(b, c.Begin)
	b = binary.AppendVarint(b, c.End-c.Begin)
	b = binary.AppendVarint(b, c.Next-c.End)
	b = appendFloat(appendFloat(b, c.This), c.Coming)
	garbage := byte(0)
	if c.Garbage {
		garbage = 1
	}
	b = append(b, garbage)
	b = binary.AppendVarint(b, int64(c.Off))
	b = binary.AppendUvarint(b, uint64(len(g.Entries)))
	for i := range g.Entries {
		e := &g.Entries[i]
		b = binary.AppendVarint(b, int64(dial-e.Last))
		b = binary.AppendVarint(b, int64(e.Last-e.First))
		b = appendFloat(b, e.Units)
		dial = e.Last
	}
	return b
}

// logs reads what append has written.
func (r *reader) logs(dial time.Duration) *Logs {
	n := r.uint()
	if n > 2*Max {
		n = r.fail()
	}
	all := make(Logs, n)
	for i := range all {
		all[i] = r.log(dial)
	}
	return &all
}

func (r *reader) log(dial time.Duration) (g Log) {
	g.Name, g.Unit, g.Longest, g.Skip, g.Total = r.text(), int32(r.int()), r.time(), r.time(), r.float()
	c := &g.Calendar
	c.Begin = r.int()
	c.End = c.Begin + r.int()
	c.Next = c.End + r.int()
	c.This, c.Coming, c.Garbage, c.Off = r.float(), r.float(), r.byte() != 0, r.time()
	n := r.uint()
	if n > maxEntries {
		n = r.fail()
	}
	if n > 0 {
		g.Entries = make([]Entry, n)
	}
	for i := range g.Entries {
		e := &g.Entries[i]
		e.Last = dial - r.time()
		e.First = e.Last - r.time()
		e.Units = r.float()
		dial = e.Last
	}
	return g
}
