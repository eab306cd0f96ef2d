// Package fallback says what calls do while the store of their limits is away.
package fallback

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// Store is a [leak.Store] around a store that may be away, such as one across a
// network. It says what happens then, for all buckets that use it:
//
//	store := &fallback.Store{Store: redis, Share: 0.25} // one of four workers
//
// An error of Store that is [outbound.ErrAway] takes it for away, for all keys. Any other,
// ctx's own, that of one key, or one that no wait cures, such as a wrong password,
// goes to who has asked and changes nothing. No call waits for a store that is away:
// it is tried again, in the background or by one call, after 100 ms, and after twice
// as long each time up to 1 s, a random part less.
// What its users get meanwhile is their choice: the error (the zero value), a
// Share, or anything at all (Unlimited). SetLimits and Resume are refused with
// the error.
//
// With a Share each key has a bucket in this process, which begins full, so that
// there is no burst at the switch: 4 workers with a Share of 0.25, a capacity of
// 40 and 20 units per second have 10 and 5 each, and a call of 11 units fails
// with the error of the store. Places that were booked in the store are void. A
// hold or a slow-down that was in force goes on, and what calls of the store
// report as refused or held holds here, too. What they have to settle is lost,
// which costs room, but for what they have cost beyond their cost.
//
// When the store is back, the workers stay on their shares until 3 s after the
// first of them has noticed, because the last one may not have before, if its store
// takes up to 2 s to fail. They agree on that in the store, under a key of their
// own, "\x00fallback"; the key of a bucket that begins so has one more zero byte
// there. Then what each key has spent here is charged there, as [outbound.Bucket.Fillup] does
// it: up to the brim and no further, and no limit that has had the time to drain
// since. So one who has spent more than a capacity leaves a full
// bucket and no debt. Holds still in force are told as well. Permits of calls that
// went meanwhile give nothing back there. For 100 ms nothing goes then, and who
// comes waits, so that all have charged what they have spent when the first goes
// on; with very many keys, which are charged one after the other, some are charged
// later than that.
//
// So the sum of the shares of all workers must not be above 1, and then they
// stay within the limit together, but for the tickets that a queue may still use
// for 25 ms after the switch, so LeakRate*25 ms, and for limits of less than a
// unit per share, who are given a unit each: ten workers with [outbound.PerSecond] may go
// all at once, each as seldom as its share says. What it does not cover: workers
// who reach the store all the while when others do not, so that the others'
// shares come on top until they have charged them.
//
// A Store must not be copied or changed after its first use.
type Store struct {
	// Store is the store that may be away, and says so by [outbound.ErrAway]: one that does
	// not know of it is never taken for away. Nil is [outbound.ErrNil] at each Update.
	Store leak.Store
	// Share is the share of every limit that this worker may use by itself
	// while the store is away, up to 1: 1 divided by the number of workers. 0:
	// none. Of anything else each Update is a [*outbound.LimitError]. At most 10 000 keys
	// have one in an outage; calls of others get the error. A worker that alone
	// does not reach the store, or has no connection to it left, has its share on top
	// of what the others use, who have all of the limit: while two of five workers
	// with 0.2 each are cut off, 140 % of it is used.
	Share float64
	// Unlimited lets all calls go while the store is away, however many. Holds
	// are still heeded. Beyond 10 000 keys, only those that were in force before,
	// and what goes is not charged on return. With a Share it is a [*outbound.LimitError].
	Unlimited bool
	// OnSwitch, if not nil, is called when the store is found to be away, with
	// its error, and when it is used again, in any goroutine, one call after the
	// other. It must not block.
	OnSwitch func(away bool, err error)

	noted atomic.Bool // there are notes
	aside atomic.Bool // not straight to the store: it is away, or keys are not charged yet

	mu      sync.Mutex // protects what follows
	away    bool
	cause   error         // why it is away
	since   time.Duration // when it was found away, by this process's clock
	back    time.Duration // when it was last used again
	spacing time.Duration // between tries
	next    time.Duration // when the next try is due
	opens   time.Duration // when calls go straight again
	trying  bool          // one by a call is under way
	news    []news        // of switches that OnSwitch has not heard of yet
	telling bool          // somebody tells it
	keys    map[string]*refuge
	notes   map[string]note
}

const (
	firstTry = 100 * time.Millisecond
	lastTry  = time.Second
	// pause is how long nothing goes at the return, so that all have been
	// charged before the first goes on.
	pause = 100 * time.Millisecond
	// gather is how long workers stay on their shares after the first of them
	// has found the store again: a try of the last one that fails, and its next.
	gather = lastTry + 2*time.Second
	// maxRefuges bounds the keys that are served with a share, and those remembered.
	maxRefuges = 10_000
	// meeting is the key under which workers agree on their return.
	meeting = "\x00fallback"
)

// apart keeps a bucket's key apart from the meeting, whatever it is.
func apart(key string) string {
	if rest, ok := strings.CutPrefix(key, meeting); ok {
		return meeting + "\x00" + rest
	}
	return key
}

// Update implements [leak.Store].
func (f *Store) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	if err := f.check(key); err != nil {
		return leak.Reply{}, err
	}
	key = apart(key)
	for f.aside.Load() {
		if err := ctx.Err(); err != nil {
			return leak.Reply{}, err
		}
		if r, done, err := f.detour(ctx, key, op); done {
			return r, err
		}
	}
	return f.straight(ctx, key, op)
}

// straight asks the store, and falls back if it is away.
func (f *Store) straight(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	r, err := f.Store.Update(ctx, key, op)
	if err == nil {
		f.note(key, op, &r)
		return r, nil
	}
	if ctx.Err() != nil || !errors.Is(err, leak.ErrAway) {
		return r, err
	}
	f.leave(err)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.away {
		return r, err
	}
	return f.serve(key, op, err)
}

// fails reports whether there is nothing to fall back on.
func (f *Store) fails() bool { return f.Share == 0 && !f.Unlimited }

func (f *Store) check(key string) error {
	switch {
	case f == nil || f.Store == nil:
		return fmt.Errorf("fallback: %w: Store", outbound.ErrNil)
	case !(f.Share >= 0 && f.Share <= 1):
		return &outbound.LimitError{Key: key, Reason: "the Share of a fallback.Store is 0 to 1, not " + strconv.FormatFloat(f.Share, 'g', 6, 64)}
	case f.Share > 0 && f.Unlimited:
		return &outbound.LimitError{Key: key, Reason: "a fallback.Store has a Share or is Unlimited, not both"}
	}
	return nil
}

// detour does what is to be done when the way is not straight to the store. It
// reports whether that was all.
func (f *Store) detour(ctx context.Context, key string, op *leak.Op) (r leak.Reply, done bool, err error) {
	f.mu.Lock()
	if !f.away {
		k, wait := f.keys[key], f.opens-now()
		f.settled()
		f.mu.Unlock()
		switch {
		case k != nil:
			err = f.charge(ctx, key, k)
			return r, err != nil, err
		case wait > 0:
			sleep(ctx, wait)
			return r, false, nil
		}
		r, err = f.straight(ctx, key, op)
		return r, true, err
	}
	cause := f.cause
	if !f.fails() || f.trying || now() < f.next {
		r, err = f.serve(key, op, cause)
		f.mu.Unlock()
		return r, true, err
	}
	f.trying = true
	f.mu.Unlock()
	r, err = f.Store.Update(ctx, key, op)
	if err != nil && ctx.Err() != nil {
		f.tried(cause, 0) // who knows
	} else {
		f.tried(err, 0)
	}
	return r, true, err
}

// leave takes the store for away.
func (f *Store) leave(err error) {
	f.mu.Lock()
	if f.away {
		f.mu.Unlock()
		return
	}
	t := now()
	f.away, f.cause, f.trying, f.since = true, err, false, t
	if f.spacing == 0 || t-f.back > 2*lastTry {
		f.spacing = firstTry / 2
	}
	f.space(t)
	f.aside.Store(true)
	f.news = append(f.news, news{true, err})
	f.mu.Unlock()
	f.tell()
}

// space sets the time of the next try, which is made by one call, or, where calls
// go on, whether one comes or not: the share of a worker that comes back long after
// the others would be on top of what they use. mu is held.
func (f *Store) space(t time.Duration) {
	f.spacing = min(2*f.spacing, lastTry)
	in := f.spacing/2 + rand.N(f.spacing/2)
	f.next = t + in
	if !f.fails() {
		time.AfterFunc(in, f.try)
	}
}

// news is a switch.
type news struct {
	away bool
	err  error
}

// tell tells of the switches in their order: whoever has begun with it tells of
// those that come meanwhile as well.
func (f *Store) tell() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for !f.telling && len(f.news) > 0 {
		n := f.news[0]
		f.news = f.news[1:]
		if f.OnSwitch != nil {
			f.telling = true
			f.mu.Unlock()
			f.call(n)
		}
	}
}

// call calls OnSwitch, and comes back with mu held.
func (f *Store) call(n news) {
	defer func() { // it may panic
		f.mu.Lock()
		f.telling = false
	}()
	f.OnSwitch(n.away, n.err)
}

// try asks the store for the time of the return. A unit that the first worker
// books takes as long to leak as all of them need to notice.
func (f *Store) try() {
	op := leak.Op{Limits: []leak.Limit{{Capacity: 1, Rate: 1 / gather.Seconds()}}}
	if !f.Unlimited {
		op.Action, op.Costs = leak.Book, []leak.Units{{1}}
	}
	r, err := f.Store.Update(context.Background(), meeting, &op)
	wait := r.Wait
	if len(r.Charges) > 0 || err != nil { // it is the first, or nobody knows
		wait = gather
	}
	f.tried(err, wait)
}

// tried takes note of how a try went. If the store is there, though it may have
// refused the try, it is used after a wait.
func (f *Store) tried(err error, wait time.Duration) {
	if errors.Is(err, leak.ErrAway) {
		f.mu.Lock()
		f.cause, f.trying = err, false
		f.space(now())
		f.mu.Unlock()
		return
	}
	if wait > 0 {
		time.AfterFunc(min(wait, gather), f.come)
		return
	}
	f.come()
}

// come uses the store again, and charges it with what was spent meanwhile.
func (f *Store) come() {
	f.mu.Lock()
	t := now()
	f.away, f.cause, f.trying, f.back, f.opens = false, nil, false, t, t
	if !f.fails() {
		f.opens += pause
	}
	keys := make([]string, 0, len(f.keys))
	for key := range f.keys {
		keys = append(keys, key)
	}
	f.settled()
	f.news = append(f.news, news{})
	f.mu.Unlock()
	f.tell()
	for _, key := range keys {
		f.mu.Lock()
		k, away := f.keys[key], f.away
		f.mu.Unlock()
		if away {
			return
		}
		if k != nil {
			_ = f.charge(context.Background(), key, k) // who asks for it next hears of it
		}
	}
}

// settled notes whether the way is straight again. mu is held.
func (f *Store) settled() { f.aside.Store(f.away || len(f.keys) > 0 || now() < f.opens) }

// sleep sleeps for d or until ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
