package redisstore

import (
	"errors"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// memory is what a line remembers of its key, to notice that the server does not.
type memory struct {
	born  time.Duration // the key's life, by the server's clock
	until time.Duration // before which the key does not expire, by the server's clock
	told  time.Time     // when a loss was last told
}

// What a server has lost, as the script tells it.
const (
	lostRecord = 2 // there is no record of this worker, or no key at all
	lostLatest = 3 // the record is older than what this worker has had an answer to
)

// The causes of an EventDataLoss.
var (
	errGone = errors.New("redisstore: the server has lost this bucket, which begins anew and empty: up to one capacity more may go out;" +
		" it was restarted or flushed, or it evicts keys (see maxmemory-policy)")
	errOlder = errors.New("redisstore: the server has lost the latest calls of this bucket: as much, up to one capacity, may go out once more;" +
		" a replica that had not heard of them was promoted, or an older copy restored")
)

// learn takes in what an answer says of requests on record. It returns why the server
// knows less than it has said before, or nil.
func (ln *line) learn(r *request, a *answer) (loss error) {
	switch {
	case a.lost == lostLatest:
		loss = errOlder
	// Without a new life only the record has gone: a key has room for so many. And a key
	// that nobody has used for long has expired with nothing in it.
	case a.lost == lostRecord && a.state.Born != ln.born && a.state.At < ln.until:
		loss = errGone
	}
	if a.lost != 0 {
		ln.heard = -1 // nothing comes back of that; and it is told once
	}
	if a.recorded >= 0 {
		ln.heard = a.recorded
	}
	ln.born = a.state.Born
	if a.recorded == r.seq && !a.repeated {
		ln.until = a.state.At + ln.lives(r, a)
	}
	return loss
}

// lives is how long a key that was just written is there at least.
func (ln *line) lives(r *request, a *answer) time.Duration {
	s := &a.state
	need := s.Last + leak.BookingGrace
	limits := r.limits
	if r.main != nil && r.main.op != nil && r.main.op.Action == leak.Replace {
		limits = r.main.op.Replacement
	}
	for i, l := range limits {
		if i < a.n {
			const years = 1e9
			need = max(need, time.Duration(min(s.Level[i].Level/l.Rate, years)*1e9))
		}
	}
	keep := 30 * time.Second // half of what the script gives it
	if a.stamp > 0 {
		keep = 15 * 24 * time.Hour
	}
	return max(0, s.Rem) + need + keep
}
