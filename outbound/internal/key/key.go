// Package key keeps one key, in a word, in this process, or in a store, and carries steps out on it
// by the limits in force.
package key

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/calendar"
	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Key is one key. Its state is in one of three places, and only this file moves it:
//
//	word   A leaky limit alone, in this process. Calls that fit move the word, without a lock.
//	struct In this process. Steps hold mu.
//	store  Steps are requests. The state never leaves the store.
//
//	word -> struct   open: any step
//	struct -> word   shut: after a step, if the state is no more than a level
//	struct -> struct renew, before a step: the state is as good as a new one, and begins another life
//
// A key with several limits, a window, a calendar, or a rate that no word can count begins in the
// struct, and stays.
type Key struct {
	Reports reports.Outbox
	made    Limits                // what the key was made with
	base    uint64                // its hash
	force   atomic.Pointer[Force] // the newest that this process knows of

	// A key in a store:
	store store.Store  // or nil
	name  string       // there
	ahead atomic.Int64 // by how much the store's time of day is ahead of this process's, in ns

	// A key in this process:
	word   *Word
	mu     sync.Mutex // protects what follows
	stored store.Stored
	born   time.Duration // the life of the word
	epoch  int64         // that the word knows of
	idle   time.Duration // when the state is as good as a new one, if it is left alone
	moved  int64         // the word, when the state was moved back
	seen   int64         // that of the word, when the state was moved here
}

// firstNumber is the Number of the limits that a key in this process was made with.
const firstNumber = 1

// Init sets a key in this process up, whose state begins in w, if w is ever used, or in the struct.
func (k *Key) Init(w *Word, born time.Duration, limits Limits) {
	k.Reports.Init()
	k.made, k.base, k.word = limits, store.Hash(limits.Law), w
	k.force.Store(&Force{Limits: limits, number: firstNumber})
	k.stored = store.Stored{State: store.New(born, len(limits.Law)), Limits: limits.Law, Number: firstNumber, Base: k.base}
	k.born, k.epoch, k.moved = born, int64(born), int64(born)
}

// InitIn sets a key up that a store keeps under a name.
func (k *Key) InitIn(in store.Store, name string, limits Limits) {
	k.Reports.Init()
	k.made, k.base, k.store, k.name = limits, store.Hash(limits.Law), in, name
	k.force.Store(&Force{Limits: limits})
}

// apart begins the names of the further keys of a bucket. No other name begins so and goes on with
// a digit or a letter.
const apart = "\x00reserved"

// Name returns the name in a store of a bucket's key. They are the same except for keys that begin
// as those apart.
func Name(bucket string) string {
	if rest, ok := strings.CutPrefix(bucket, apart); ok {
		return apart + "\x00" + rest
	}
	return bucket
}

// NameOfSlots returns the name of the key of a bucket's calls in flight.
func NameOfSlots(bucket string) string { return apart + "in flight:" + bucket }

// NameOfReservations returns the name of the key of this one's reservations by these limits.
func (k *Key) NameOfReservations(limits []store.Limit) string {
	return apart + strconv.FormatUint(store.Hash(limits), 10) + ":" + k.name
}

// Remote reports whether the state is in a store.
func (k *Key) Remote() bool { return k.store != nil }

// Force returns the limits in force, as far as is known here.
func (k *Key) Force() *Force { return k.force.Load() }

// carry carries an Op out, wherever the state is.
func (k *Key) carry(ctx context.Context, s *Step, op *store.Op, r *Reply) (err error) {
	if k.store == nil {
		k.here(s, op, r)
		return nil
	}
	if s.InFlight != nil {
		r.InFlight = s.InFlight.Now()
	}
	r.Reply, err = k.store.Update(ctx, k.name, op)
	if err == nil && r.State.Unix != 0 && op.Periods != nil {
		at := r.When
		if at.IsZero() {
			at = time.Now()
		}
		k.ahead.Store(int64(r.State.Unix - calendar.Stamp(at)))
	}
	return err
}

// here carries an Op out on the state in the struct.
func (k *Key) here(s *Step, op *store.Op, r *Reply) {
	k.mu.Lock()
	defer k.mu.Unlock()
	word := k.word.Used()
	if word {
		k.openLocked(op)
	}
	at, unix := Now(), time.Duration(0)
	if op.Periods != nil {
		unix = calendar.Stamp(time.Now())
	}
	r.Reply = op.ApplyAt(&k.stored, at, unix)
	if s.InFlight != nil {
		if s.Action == store.Replace {
			s.InFlight.Replace(s.With)
		}
		r.InFlight = s.InFlight.Now()
	}
	if word {
		k.idle = Later(r.State.At, r.Expire)
		if r.InFlight == nil { // which the word does not count
			k.shutLocked()
		}
	}
}

// openLocked moves the word's state here.
func (k *Key) openLocked(op *store.Op) {
	w, s := k.word, &k.stored.State
	word, t := w.word.Swap(busy), Now()
	if word == busy {
		k.renewLocked(t)
	} else {
		k.seen = w.seen.Load()
		w.Read(s, k.stored.Limits, word, t)
	}
	if word != busy && word != k.moved { // a call was charged to the word
		s.Top = numberOf(word, k.born)
		s.IDs = max(s.IDs, s.Top)
		for i := range op.Reports {
			if c := op.Reports[i].Charge; c != nil && c.ID == s.Top && c.Born == s.Born {
				s.Last = max(s.Last, c.Place-s.Dial()) // seen is coarse
			}
		}
	}
	if w.info.Load()&good != 0 {
		s.Succeeded(k.epoch)
	}
}

// numberOf returns the number of the booking that made the word.
func numberOf(word int64, born time.Duration) int64 { return word - int64(born) + 1 }

// renewLocked begins a new life, and the word with it, if the state is as good as a
// new one at time t. The life begins when that came to be so: no call of before is of it.
// Refusals are forgotten with the life. If there were none, a refusal of one of its calls
// still counts as a new one, and so the epoch stays. While calls wait the life goes on,
// because it shows that a reservation is late.
func (k *Key) renewLocked(t time.Duration) {
	if k.stored.Number != firstNumber || t < k.idle || k.Reports.Watched() {
		return
	}
	s := store.New(k.idle, 1)
	if was := &k.stored.State; was.Epoch == k.epoch {
		s.Epoch, s.Fails = was.Epoch, was.Fails
	} else {
		k.word.info.And(^uint32(good))
	}
	k.stored.State, k.stored.Lead = s, 0
	k.born, k.epoch = s.Born, s.Epoch
	k.word.seen.Store(Never) // a Resume leaves no call on the way
}

// shutLocked moves the state back to the word, if it is simple enough.
func (k *Key) shutLocked() {
	s, w := &k.stored.State, k.word
	simple := k.stored.Number == firstNumber && s.Born == k.born && s.Epoch == k.epoch && s.Skip == 0 &&
		s.Rem <= 0 && s.Last <= 0 && s.Parts[0].Ret == 0 && s.Level[0] <= w.capacity
	if !simple {
		return
	}
	if seen := int64(s.At + s.Last); s.Last > -store.BookingGrace && seen > w.seen.Load() {
		w.seen.Store(seen)
	} else if seen < k.seen { // the last booking was undone
		w.seen.CompareAndSwap(k.seen, seen)
	}
	k.moved = int64(s.At) + lasts(s.Level[0], w.unit)
	w.word.Store(k.moved)
}

// Direct reports whether Take may decide a call. It may if the state is always in the struct, and
// all reports have left.
func (k *Key) Direct() bool { return k.store == nil && !k.word.Used() && k.Reports.Quiet() }

// Take books a call in the struct, by the limits of f, and copies nothing. If it books the call, it
// asks for the charge to write to, and shows the state. The answer goes to t.
func (k *Key) Take(f *Force, n *store.Units, t *store.Taken, charge func(at time.Duration) *store.Charge, booked func(*store.State)) {
	unix := time.Duration(0)
	var periods []store.Period
	if f.Calendar != nil {
		unix = calendar.Stamp(time.Now())
		periods = f.Calendar.At(unix - store.Slack)
	}
	k.mu.Lock() // without a defer, which would take a tenth of the time
	at := Now()
	k.stored.Take(f.number, n, periods, 0, at, unix, t, charge)
	if t.Booked {
		booked(&k.stored.State)
	}
	k.mu.Unlock()
}

// Charge returns what a call has taken of the word as a charge of the key.
func (k *Key) Charge(f *Fill) (c store.Charge) {
	k.mu.Lock()
	c.Born, c.Epoch = k.born, k.epoch
	k.mu.Unlock()
	if f.At < int64(c.Born) { // a charge of an earlier life returns nothing
		c.Born = Never
	}
	if f.At < c.Epoch { // the newest that the call can have known of
		c.Epoch = Never
	}
	c.ID, c.Number = numberOf(f.Word, c.Born), firstNumber
	c.N[0] = f.Units
	c.Y[0] = float64(f.Word-f.At) / float64(k.word.unit)
	c.Place = time.Duration(f.At) - c.Born
	c.Before = time.Duration(f.before) - c.Born
	c.Free = Later(c.Place, (&store.Limit{Rate: k.made.Law[0].Rate}).Above(f.Units, 0))
	return c
}

// Succeeded notes the success of a call that was charged to the word at time t.
func (k *Key) Succeeded(t int64) {
	k.mu.Lock() // or a new life might begin before it is noted
	defer k.mu.Unlock()
	if t >= k.epoch {
		k.word.Succeeded()
	}
}

// Changed reports whether the limits are not those that the key was made with.
func (k *Key) Changed() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stored.Set
}
