package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// AddKeyed counts the calls of all keys of k under one name, and shows those keys that are in trouble. The result
// returns the limiter of a key, as [outbound.Keyed.For] does: use it instead. A label is what the page calls a key;
// it must not be a secret. nil: sixteen hexadecimal digits, which are others in each process and do not reveal the key.
// Actions are for keys that share their label with no other.
//
// However many keys there are, metrics have one series. Of buckets in this process the page finds the fullest; of
// shared ones, whose state is elsewhere, it shows those that were refused most often lately.
func AddKeyed[K comparable](b *Board, name string, k *outbound.Keyed[K], label func(K) string) func(K) outbound.Limiter {
	if label == nil {
		seed := maphash.MakeSeed()
		label = func(key K) string {
			if key != key { // as NaN is
				return "?"
			}
			return fmt.Sprintf("%016x", maphash.Comparable(seed, key))
		}
	}
	set := &keyedSet[K]{keyed: k, label: func(key K) string {
		return cmp.Or(label(key), "(no label)") // an empty one would look like all keys
	}}
	s, _ := b.show(name, nil, set)
	return func(key K) outbound.Limiter {
		l := &limiterOfKey[K]{own: ofKey[K]{set, key}}
		l.counted = counted{limiter: &l.own, meter: &s.meter, board: b, name: name}
		return l
	}
}

// limiterOfKey is the limiter of a key with its counters, in one piece.
type limiterOfKey[K comparable] struct {
	counted
	own ofKey[K]
}

// Idle is true: forgetting it loses nothing, as with what [outbound.Keyed.For] returns.
func (*limiterOfKey[K]) Idle() bool { return true }

// ofKey is the limiter of a key. It notes refusals.
type ofKey[K comparable] struct {
	set *keyedSet[K]
	key K
}

// Unwrap returns the key's handle.
func (o *ofKey[K]) Unwrap() outbound.Limiter { return o.set.keyed.For(o.key) }

func (o *ofKey[K]) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	p, err := o.set.keyed.Acquire(ctx, o.key, c)
	if err != nil && errors.Is(err, outbound.ErrThrottled) {
		o.set.refused.note(o.key, now())
	}
	return p, err
}

// keys is a set of limiters by keys, whatever the keys are.
type keys interface {
	len() int
	// worst returns the limiters of the keys that are most worth showing, at most n, of those with the search in their
	// label, in any case, and how many more of them there are. With an empty search it makes the labels of n keys only.
	worst(n int, search string) (all []keyRow, more int)
	// find returns the limiter of the one key with a label; nil: there is none, or there are several.
	find(label string) outbound.Limiter
}

// keyRow is one key.
type keyRow struct {
	label   string
	limiter outbound.Limiter
	full    float64 // how full it is, above 1 if it is refused
	refused bool    // calls were refused lately
}

type keyedSet[K comparable] struct {
	keyed   *outbound.Keyed[K]
	label   func(K) string
	refused refusedKeys[K]

	mu    sync.Mutex // protects what follows
	walks []*walk[K] // the latest last; none changes
}

// walk is what a look at all keys has found.
type walk[K comparable] struct {
	search string        // in small letters
	n      int           // it has looked for so many
	until  time.Duration // when it is time for another
	best   []candidate[K]
	more   int
}

const (
	// rests is how many times as long as a walk takes there is none for the same search after it: looks at very many
	// keys take a hundredth of a processor, however many people look. Meanwhile those that the walk has found are
	// looked at anew.
	rests = 100
	// mostWalks is how many searches' walks are remembered.
	mostWalks = 8
)

func (s *keyedSet[K]) len() int { return s.keyed.Len() }

// find looks at all keys, for an action.
func (s *keyedSet[K]) find(label string) (found outbound.Limiter) {
	var of K
	for key, l := range s.keyed.All() { // which may yield a key twice
		if (found == nil || key != of) && s.label(key) == label {
			if found != nil {
				return nil
			}
			found, of = l, key
		}
	}
	return found
}

// contains reports whether a name or label has a search in it, which is in small letters.
func contains(s, search string) bool { return strings.Contains(strings.ToLower(s), search) }

// candidate is a key that may be among the worst.
type candidate[K comparable] struct {
	key     K
	limiter outbound.Limiter
	full    float64
}

func (s *keyedSet[K]) worst(n int, search string) (all []keyRow, more int) {
	refused, begin := s.refused.counts(now()), now()
	best, more, ok := s.recall(n, search, begin)
	if ok {
		for i := range best {
			best[i].full = troubled(best[i].limiter, refused[best[i].key])
		}
		slices.SortStableFunc(best, func(a, b candidate[K]) int { return cmp.Compare(a.full, b.full) })
		if less := len(best) - n; less > 0 {
			best, more = best[less:], more+less
		}
	} else {
		best, more = s.walk(n, search, refused)
		s.remember(&walk[K]{search, n, now() + rests*(now()-begin), best, more})
	}
	for _, c := range slices.Backward(best) {
		all = append(all, keyRow{s.label(c.key), c.limiter, c.full, refused[c.key] > 0})
	}
	return all, more
}

// recall returns what an earlier walk has found that was for as many keys and the same search, if it is not time for
// another.
func (s *keyedSet[K]) recall(n int, search string, at time.Duration) (best []candidate[K], more int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.walks {
		if w.search == search && w.n >= n && at < w.until {
			return slices.Clone(w.best), w.more, true
		}
	}
	return nil, 0, false
}

// remember keeps what a walk has found, and drops what is out of date.
func (s *keyedSet[K]) remember(w *walk[K]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := now()
	s.walks = slices.DeleteFunc(s.walks, func(old *walk[K]) bool { return old.search == w.search || at >= old.until })
	if len(s.walks) >= mostWalks {
		s.walks = slices.Delete(s.walks, 0, 1)
	}
	s.walks = append(s.walks, w)
}

// walk looks at all keys. It returns those that are most worth showing, the first last.
func (s *keyedSet[K]) walk(n int, search string, refused map[K]uint64) (best []candidate[K], more int) {
	for key, l := range s.keyed.All() {
		if search != "" && !contains(s.label(key), search) {
			continue
		}
		full := troubled(l, refused[key])
		if len(best) >= n {
			if more++; n == 0 || full <= best[0].full {
				continue
			}
			best = slices.Delete(best, 0, 1)
		}
		i, _ := slices.BinarySearchFunc(best, full, func(c candidate[K], full float64) int {
			if c.full < full {
				return -1
			}
			return 1
		})
		best = slices.Insert(best, i, candidate[K]{key, l, full})
	}
	return best, more
}

// troubled is how full a limiter is that was refused so many times lately: then it comes before others that are full.
func troubled(l outbound.Limiter, refused uint64) float64 {
	full := fullness(l)
	if refused > 0 {
		full = max(full, 1) + float64(refused)/(1+float64(refused))
	}
	return full
}

// fullness is how full a limiter is, as far as this process knows without a trip: calls that wait are more than full,
// and a hold is more than that.
func fullness(l outbound.Limiter) (full float64) {
	l = inner(l)
	if b := bucketIn(l); b != nil && !b.Shared() {
		if s, err := b.State(context.Background()); err == nil && s.HeldFor > 0 {
			full = 5
		} else if err == nil {
			full = s.Level / s.Limit.Capacity
		}
	}
	if q, ok := l.(interface{ Len() int }); ok {
		if n := q.Len(); n > 0 {
			full = max(full, 3+float64(n)/(1+float64(n)))
		}
	}
	return min(full, 5)
}

// mostRefused is how many keys are remembered that were refused.
const mostRefused = 32

// refusedKeys counts the refusals of the keys that are refused most, about: a key that is new takes the place of the
// one with the fewest, and its count, as space-saving does. Each minute halves the counts.
type refusedKeys[K comparable] struct {
	mu   sync.Mutex
	keys []refusedKey[K]
	aged time.Duration // when the counts were halved last
}

type refusedKey[K comparable] struct {
	key   K
	times uint64
}

// ageLocked halves the counts for each minute that has passed, and forgets who has none left.
func (r *refusedKeys[K]) ageLocked(at time.Duration) {
	minutes := (at - r.aged) / time.Minute
	if minutes <= 0 {
		return
	}
	r.aged += minutes * time.Minute
	r.keys = slices.DeleteFunc(r.keys, func(k refusedKey[K]) bool { return k.times>>min(minutes, 63) == 0 })
	for i := range r.keys {
		r.keys[i].times >>= min(minutes, 63)
	}
}

func (r *refusedKeys[K]) note(key K, at time.Duration) {
	if key != key {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ageLocked(at)
	least := 0
	for i := range r.keys {
		if r.keys[i].key == key {
			r.keys[i].times++
			return
		}
		if r.keys[i].times < r.keys[least].times {
			least = i
		}
	}
	if len(r.keys) < mostRefused {
		r.keys = append(r.keys, refusedKey[K]{key, 1})
		return
	}
	r.keys[least].key = key
	r.keys[least].times++
}

func (r *refusedKeys[K]) counts(at time.Duration) map[K]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ageLocked(at)
	all := make(map[K]uint64, len(r.keys))
	for _, k := range r.keys {
		all[k.key] = k.times
	}
	return all
}
