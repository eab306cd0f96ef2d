package redisstore

import (
	"errors"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// life is what is known of a key's life, to notice that the server knows less.
type life struct {
	born  time.Duration // when it began, by the server's clock
	until time.Duration // before which the key does not expire, by the server's clock
}

// What a server has lost, in the script's words.
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

// learn takes in what a reply says of trips on record. It returns why the server
// knows less than it has said before, or nil.
func (k *key) learn(a *engine.Attempt) (loss error) {
	s, n := &a.Reply.State, a.Note.(*note)
	switch {
	case n.lost == lostLatest:
		loss = errOlder
	// Without a new life only the record has gone, because a key has room for so many. A
	// key that nobody has used for long has expired with nothing in it.
	case n.lost == lostRecord && s.Born != k.born && s.At < k.until:
		loss = errGone
	}
	if n.lost != 0 {
		k.heard = -1 // nothing comes back of that; and it is told once
	}
	if n.recorded >= 0 {
		k.heard = n.recorded
	}
	k.born = s.Born
	if n.recorded == a.Seq && !n.repeated {
		k.until = s.At + lasts(a)
	}
	return loss
}

// lasts is how long a key that was just written is there at least.
func lasts(a *engine.Attempt) time.Duration {
	s := &a.Reply.State
	need := s.Last + leak.BookingGrace
	limits := a.Op.Limits
	if a.Op.Action == leak.Replace {
		limits = a.Op.Replacement
	}
	for i, l := range limits {
		const years = 1e9
		if l.Kind != leak.Leaky { // of a calendar it is real time
			need = max(need, time.Duration(s.Level[i].Ret))
			continue
		}
		need = max(need, time.Duration(min(s.Level[i].Level/l.Rate, years)*1e9))
	}
	keep := 30 * time.Second // half of what the script gives it
	if a.Reply.Stamp > 0 {
		keep = 15 * 24 * time.Hour
	}
	return max(0, s.Rem) + need + keep
}
