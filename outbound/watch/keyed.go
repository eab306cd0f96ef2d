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

// AddKeyed counts the calls of all keys of k under one name, and shows the keys that are in
// trouble. It returns a function that returns the limiter of a key, as [outbound.Keyed.For] does:
// use it instead. A label is what the page calls a key. It must not be a secret. If label is nil, a
// key is shown as sixteen hexadecimal digits, which do not reveal it and differ in each process. An
// action needs a label that no other key has.
//
// All keys are one series of metrics. The page shows the fullest buckets of this process, and the
// shared buckets with recent refusals. The Board foresees no quota of a key, because that takes a
// history of each. If New observes the bucket of a key, its row and its Explain have a forecast.
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
	s := b.show(name, nil, set)
	return func(key K) outbound.Limiter {
		l := &limiterOfKey[K]{own: ofKey[K]{set, key}}
		l.counted = counted{limiter: &l.own, meter: &s.meter, board: b, name: clean(name)}
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
		o.set.refuse(o.key)
	}
	return p, err
}

// keys is a set of limiters by keys, whatever the keys are.
type keys interface {
	len() int
	// worst returns at most n limiters of keys that are most worth showing, and how many more match.
	// A key matches if its label contains the search, in any case. With an empty search it makes the
	// labels of n keys only.
	worst(n int, search string) (all []keyRow, more int)
	// find returns the limiter of the one key with a label, or nil.
	find(label string) outbound.Limiter
}

// keyRow is one key.
type keyRow struct {
	label   string
	limiter outbound.Limiter
	full    float64 // how full it is, above 1 if it was refused
	refused bool    // calls were refused lately
}

const (
	// rests is the pause after a look at all keys, in times of what the look took. So looks take at
	// most a hundredth of a processor, however many people look. Meanwhile a look visits the keys
	// that the last one has found.
	rests = 100
	// mostRefused is how many keys are remembered that were refused, and lately for how long.
	mostRefused = 32
	lately      = 2 * time.Minute
)

type keyedSet[K comparable] struct {
	keyed *outbound.Keyed[K]
	label func(K) string

	mu      sync.Mutex      // protects what follows
	refused []refusedKey[K] // the latest last
	last    walk[K]
}

// refusedKey is a key that was refused, and how often since it is remembered.
type refusedKey[K comparable] struct {
	key   K
	times float64
	at    time.Duration // the last time
}

// walk is what the last look at all keys has found.
type walk[K comparable] struct {
	search string
	n      int           // it has looked for so many
	until  time.Duration // when it is time for another
	best   []candidate[K]
	more   int
}

// candidate is a key that may be among the worst.
type candidate[K comparable] struct {
	key     K
	limiter outbound.Limiter
	full    float64
}

func (s *keyedSet[K]) len() int { return s.keyed.Len() }

// refuse notes a refusal.
func (s *keyedSet[K]) refuse(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := refusedKey[K]{key: key, at: now()}
	if i := slices.IndexFunc(s.refused, func(r refusedKey[K]) bool { return r.key == key }); i >= 0 {
		if r.at-s.refused[i].at <= lately {
			r.times = s.refused[i].times
		}
		s.refused = slices.Delete(s.refused, i, i+1)
	} else if len(s.refused) == mostRefused {
		s.refused = slices.Delete(s.refused, 0, 1)
	}
	r.times++
	s.refused = append(s.refused, r)
}

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

func (s *keyedSet[K]) worst(n int, search string) (all []keyRow, more int) {
	begin := now()
	s.mu.Lock()
	w, refused := s.last, make(map[K]float64)
	for _, r := range s.refused {
		if begin-r.at <= lately {
			refused[r.key] = r.times
		}
	}
	s.mu.Unlock()
	full := func(l outbound.Limiter, times float64) float64 {
		if times > 0 { // it comes before other full ones
			return max(fullness(l), 1) + times/(1+times)
		}
		return fullness(l)
	}
	worse := func(a, b candidate[K]) int { return cmp.Compare(a.full, b.full) }
	if w.search == search && w.n >= n && begin < w.until {
		w.best = slices.Clone(w.best)
		for i := range w.best {
			w.best[i].full = full(w.best[i].limiter, refused[w.best[i].key])
		}
		slices.SortStableFunc(w.best, worse)
	} else {
		w = walk[K]{search: search, n: n}
		for key, l := range s.keyed.All() {
			if search != "" && !contains(s.label(key), search) {
				continue
			}
			c := candidate[K]{key, l, full(l, refused[key])}
			if len(w.best) >= n {
				if w.more++; n == 0 || c.full <= w.best[0].full {
					continue
				}
				w.best = slices.Delete(w.best, 0, 1)
			}
			i, _ := slices.BinarySearchFunc(w.best, c, func(a, b candidate[K]) int { return cmp.Or(worse(a, b), 1) })
			w.best = slices.Insert(w.best, i, c)
		}
		w.until = now() + rests*(now()-begin)
		s.mu.Lock()
		s.last = w
		s.mu.Unlock()
	}
	for _, c := range slices.Backward(w.best[max(0, len(w.best)-n):]) {
		all = append(all, keyRow{s.label(c.key), c.limiter, c.full, refused[c.key] > 0})
	}
	return all, w.more + len(w.best) - len(all)
}

// fullness is how full a limiter is, as far as this process knows without asking the store. Calls
// that wait are more than full, and a hold is more than that.
func fullness(l outbound.Limiter) (full float64) {
	l = inner(l)
	b := bucketIn(l)
	if b != nil && !b.Shared() {
		if s, err := b.State(context.Background()); err == nil && s.HeldFor > 0 {
			full = 5
		} else if err == nil {
			full = s.Level / s.Limit.Capacity
		}
	}
	if q, ok := l.(hasStats); ok && b != nil {
		if n := float64(q.Stats().Waiting); n > 0 {
			full = max(full, 3+n/(1+n))
		}
	}
	return min(full, 5)
}
