package leak

import (
	"encoding/binary"
	"time"
)

// append appends the logs: their number, and of each its name, unit, kind, zone, longest window,
// skip, place beside and total, its calendar, and its entries, whose times are differences from the
// dial and from the entry before.
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
	b = binary.AppendVarint(b, int64(g.Kind)*(MaxUnit+1)+int64(g.Unit))
	b = binary.AppendUvarint(b, uint64(len(g.Zone)))
	b = append(b, g.Zone...)
	b = binary.AppendVarint(b, int64(g.Longest))
	b = binary.AppendVarint(b, int64(dial-g.Begin))
	b = binary.AppendVarint(b, int64(g.Skip))
	b = binary.AppendVarint(b, int64(dial-g.Beside))
	b = appendFloat(b, g.Total)
	c := &g.Calendar
	b = binary.AppendVarint(b, c.Begin)
	b = binary.AppendVarint(b, c.End-c.Begin)
	b = binary.AppendVarint(b, c.Next-c.End)
	b = appendFloat(appendFloat(appendFloat(b, c.This), c.Coming), c.Least)
	garbage := byte(0)
	if c.Garbage {
		garbage = 1
	}
	b = append(b, garbage)
	b = binary.AppendVarint(b, int64(c.Off))
	b = binary.AppendUvarint(b, uint64(len(g.Entries)))
	aged := time.Duration(0)
	for i := range g.Entries {
		e := &g.Entries[i]
		b = binary.AppendVarint(b, int64(dial-e.Last))
		b = binary.AppendVarint(b, int64(e.Last-e.First))
		b = appendFloat(b, e.Units)
		b = binary.AppendVarint(b, int64(e.Aged-aged))
		dial, aged = e.Last, e.Aged
	}
	return b
}

// logs reads what append has written.
func (r *reader) logs(s *State) *Logs {
	n := r.uint()
	if n > maxLogs {
		n = r.fail()
	}
	all := make(Logs, n)
	for i := range all {
		all[i] = r.log(s)
	}
	return &all
}

func (r *reader) log(s *State) (g Log) {
	dial := s.Dial()
	g.Name = r.text()
	g.Kind, g.Unit = r.kind(r.int())
	g.Zone, g.Longest, g.Begin, g.Skip, g.Beside, g.Total = r.text(), r.time(), dial-r.time(), r.time(), dial-r.time(), r.float()
	c := &g.Calendar
	c.Begin = r.int()
	c.End = c.Begin + r.int()
	c.Next = c.End + r.int()
	c.This, c.Coming, c.Least, c.Garbage, c.Off = r.float(), r.float(), r.float(), r.byte() != 0, r.time()
	n := r.uint()
	if n > maxEntries {
		n = r.fail()
	}
	if n > 0 {
		g.Entries = make([]Entry, n)
	}
	aged := time.Duration(0)
	for i := range g.Entries {
		e := &g.Entries[i]
		e.Last = dial - r.time()
		e.First = e.Last - r.time()
		e.Units = r.float()
		e.Aged = aged + r.time()
		dial, aged = e.Last, e.Aged
	}
	return g
}
