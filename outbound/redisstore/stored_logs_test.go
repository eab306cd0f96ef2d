package redisstore_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
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
		_, of, other := strings.Cut(field, ":")
		closed, size := "", 184
		switch {
		case field[0] == 'l' && len(value) > 48:
			of, closed = field[1:], fields["g"+field[1:]]
		case field[0] != 'k' || !other:
			continue
		case unpack(value)[6] > float64(leak.Fixed):
			size = 136
			fallthrough
		default:
			value, closed = value[:size], value[size:]
		}
		g, err := logOf(unpack(value), unpack(closed))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
		g.Unit, g.Name = int32(of[0]-'0'), of[1:]
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
	if g.Kind = leak.Kind(f[6]); g.Kind.Calendar() {
		for _, zone := range []string{"UTC", "America/Los_Angeles", "Europe/Berlin"} { // those of the tests
			if f[7] == redisstore.Zone(zone) {
				g.Zone = zone
			}
		}
		g.Total, g.Beside = f[8], math.MinInt64 // it keeps no place
		g.Calendar = leak.Calendar{Begin: int64(f[9]), End: int64(f[10]), Next: int64(f[11]), This: f[12], Coming: f[13], Garbage: f[14] != 0, Off: ns(f[15]), Least: f[16]}
		return g, nil
	}
	g.Longest, g.Begin, g.Beside, g.Total = ns(f[8]), ns(f[9]), ns(f[11]), f[12]
	count, sum := int(f[13]), f[14]
	if g.Skip = math.MinInt64; f[10] > -1e300 {
		g.Skip = ns(f[10])
	}
	if len(closed) != 4*max(0, count-1) || count > 1 && !slices.Equal(f[15:19], closed[:4]) {
		return g, fmt.Errorf("%d entries: the oldest is %v, and all but the newest are %v", count, f[15:19], closed)
	}
	if count > 0 {
		closed = append(closed, f[19:23]...)
	}
	for ; len(closed) > 0; closed = closed[4:] {
		e := leak.Entry{Last: ns(closed[1]), Units: closed[2], Aged: ns(closed[3])}
		if e.First = e.Last + 1; closed[0] <= closed[1] {
			e.First = ns(closed[0])
		}
		g.Entries = append(g.Entries, e)
		sum -= e.Units
	}
	if math.Abs(sum) > 1e-9*max(1, f[13])+1e-11*math.Abs(f[11]) { // the last bits of what has come and gone
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

// compareLogs returns a difference between logs, where entries may be some nanoseconds apart. dial is
// what the clock shows: of bookings that it has passed the logs need not tell.
func compareLogs(want, got *leak.Logs, dial time.Duration, far float64) error {
	find := func(all *leak.Logs, g *leak.Log) leak.Log {
		if all != nil {
			for _, h := range *all {
				if h.Name == g.Name && h.Unit == g.Unit && h.Kind.Calendar() == g.Kind.Calendar() && (!h.Kind.Calendar() || h.Kind == g.Kind && h.Zone == g.Zone) {
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
				a.Begin == b.Begin && a.End == b.End && a.Next == b.Next && equal(a.This, b.This) && equal(a.Coming, b.Coming) && equal(a.Least, b.Least) && a.Garbage == b.Garbage
			passed := max(g.Beside, h.Beside) < dial+time.Duration(far)
			ok = ok && (passed || g.Kind.Calendar() || near(g.Beside, h.Beside))
			ok = ok && (near(g.Begin, h.Begin) || len(g.Entries) == 0 || g.Skip == math.MinInt64)
			for k := range g.Entries {
				if !ok {
					break
				}
				e, f := &g.Entries[k], &h.Entries[k]
				ok = near(e.First, f.First) && near(e.Last, f.Last) && near(e.Aged, f.Aged) && equal(e.Units, f.Units) && (e.First > e.Last) == (f.First > f.Last)
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
