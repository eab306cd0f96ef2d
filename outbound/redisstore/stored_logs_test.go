package redisstore_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// logsOf reads the logs that the server keeps of a key.
func logsOf(rdb *redis.Client, s *redisstore.Store, key string) (*leak.Logs, error) {
	fields, err := rdb.HGetAll(background, s.Key(key)).Result()
	if err != nil {
		return nil, err
	}
	if len(fields) == 0 { // the key has expired
		return nil, nil
	}
	logs := new(leak.Logs)
	for field, value := range fields {
		if field[0] != 'l' {
			continue
		}
		closed := fields["g"+field[1:]]
		switch {
		case len(value) > 48:
		case len(closed) >= 128 && unpack(closed)[6] > float64(leak.Fixed): // a leaky limit stands before it
			value, closed = closed[:128], closed[128:]
		case len(closed) >= 152:
			value, closed = closed[:152], closed[152:]
		default:
			continue
		}
		g, err := logOf(unpack(value), unpack(closed))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
		g.Unit, g.Name = int32(field[1]-'0'), field[2:]
		*logs = append(*logs, g)
	}
	return logs, nil
}

func unpack(s string) (numbers []float64) {
	for ; len(s) >= 8; s = s[8:] {
		numbers = append(numbers, math.Float64frombits(binary.LittleEndian.Uint64([]byte(s[:8]))))
	}
	return numbers
}

func logOf(f, closed []float64) (g leak.Log, err error) {
	if leak.Kind(f[6]).Calendar() {
		g.Total = f[8]
		g.Calendar = leak.Calendar{Begin: int64(f[9]), End: int64(f[10]), Next: int64(f[11]), This: f[12], Coming: f[13], Garbage: f[14] != 0, Off: ns(f[15])}
		return g, nil
	}
	g.Longest, g.Total = ns(f[8]), f[10]
	count, sum := int(f[11]), f[12]
	if g.Skip = math.MinInt64; f[9] > -1e300 {
		g.Skip = ns(f[9])
	}
	if len(closed) != 3*max(0, count-1) || count > 1 && !slices.Equal(f[13:16], closed[:3]) {
		return g, fmt.Errorf("%d entries: the oldest is %v, and all but the newest are %v", count, f[13:16], closed)
	}
	if count > 0 {
		closed = append(closed, f[16:19]...)
	}
	for ; len(closed) > 0; closed = closed[3:] {
		e := leak.Entry{Last: ns(closed[1]), Units: closed[2]}
		if e.First = e.Last + 1; closed[0] <= closed[1] {
			e.First = ns(closed[0])
		}
		g.Entries = append(g.Entries, e)
		sum -= e.Units
	}
	if math.Abs(sum) > 1e-9*max(1, f[12])+1e-11*math.Abs(f[10]) { // the last bits of what has come and gone
		err = fmt.Errorf("the sum is %v more than the entries", sum)
	}
	return g, err
}

// ns makes a time of microseconds.
func ns(us float64) time.Duration {
	whole := math.Floor(us)
	return time.Duration(whole)*1000 + time.Duration(math.Round((us-whole)*1000))
}

// errMerged is a difference between full logs of which entries have become one. A nanosecond
// decides which of them are nearest to each other.
var errMerged = errors.New("other neighbours were merged")

// units returns the units of a log's entries.
func units(g *leak.Log) (n float64) {
	for i := range g.Entries {
		n += g.Entries[i].Units
	}
	return n
}

// compareLogs returns a difference between logs, where entries may be some nanoseconds apart.
func compareLogs(want, got *leak.Logs, far float64) error {
	find := func(all *leak.Logs, g *leak.Log) leak.Log {
		if all != nil {
			for _, h := range *all {
				if h.Name == g.Name && h.Unit == g.Unit {
					return h
				}
			}
		}
		return leak.Log{Name: g.Name, Unit: g.Unit}
	}
	near := func(a, b time.Duration) bool { return math.Abs(float64(a-b)) <= far+4e-16*math.Abs(float64(b)) }
	equal := func(a, b float64) bool { return math.Abs(a-b) <= 1e-6+1e-9*math.Abs(b) }
	sides := [2]*leak.Logs{want, got}
	for i, side := range sides {
		if side == nil {
			continue
		}
		for _, g := range *side {
			h := find(sides[1-i], &g)
			a, b := &g.Calendar, &h.Calendar
			ok := equal(g.Total, h.Total) && (math.Abs(float64(g.Skip)-float64(h.Skip)) <= 1000+far || len(g.Entries) == 0) && (g.Longest == h.Longest || len(g.Entries) == 0) && len(g.Entries) == len(h.Entries) &&
				a.Begin == b.Begin && a.End == b.End && a.Next == b.Next && equal(a.This, b.This) && equal(a.Coming, b.Coming) && a.Garbage == b.Garbage
			for k := range g.Entries {
				if !ok {
					break
				}
				e, f := &g.Entries[k], &h.Entries[k]
				ok = near(e.First, f.First) && near(e.Last, f.Last) && equal(e.Units, f.Units) && (e.First > e.Last) == (f.First > f.Last)
			}
			if d := len(g.Entries) - len(h.Entries); !ok && min(len(g.Entries), len(h.Entries)) > 120 && d <= 1 && d >= -1 && equal(g.Total, h.Total) && equal(units(&g), units(&h)) {
				return errMerged
			}
			if !ok {
				return fmt.Errorf("log %+v, want %+v", find(got, &g), find(want, &g))
			}
		}
	}
	return nil
}
