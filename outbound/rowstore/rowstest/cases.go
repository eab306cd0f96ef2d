package rowstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// tester is what a case needs of a *testing.T.
type tester interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// exam is one case under way.
type exam struct {
	tester
	rows, other rowstore.Rows // of two processes
	sentence    string
}

// cases are the sentences of the contract.
var cases = []struct {
	sentence string
	check    func(*exam)
}{
	{"a row is written if it has the token Old, and not otherwise", (*exam).tokens},
	{"a row is written if the swap is InTime, and not otherwise", (*exam).inTime},
	{"keys are bytes, and bytes are kept as they are", (*exam).bytes},
	{"each swap of a call is carried out by itself", (*exam).each},
	{"of processes that swap a row at the same time one writes it", (*exam).races},
	{"Clock is the Unix time, in steps below a millisecond", (*exam).clock},
	{"a row that is locked is written by no other process, and read and timed once it is locked", (*exam).locks},
}

func (e *exam) failf(format string, args ...any) {
	e.Helper()
	e.Errorf("the contract says %q: %s", e.sentence, fmt.Sprintf(format, args...))
}

// key returns a key as the store makes them.
func key() []byte { return fmt.Appendf(nil, "#%016x", rand.Uint64()) }

// patience is the longest time that a request takes.
const patience = 10 * time.Second

// swap carries one swap out.
func (e *exam) swap(rows rowstore.Rows, s rowstore.Swap) rowstore.Swap {
	e.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		swaps := []rowstore.Swap{s}
		err := rows.Swap(ctx, swaps)
		if errors.Is(err, store.ErrUnavailable) && ctx.Err() == nil {
			continue // a wait may cure it
		}
		if err != nil || swaps[0].Clock <= 0 {
			e.Fatalf("the contract says %q: clock %v, error %v", e.sentence, swaps[0].Clock, err)
		}
		return swaps[0]
	}
}

func (e *exam) look(key []byte) rowstore.Swap {
	e.Helper()
	return e.swap(e.rows, rowstore.Swap{Key: key})
}

// write swaps a row by the time of the rows.
func (e *exam) write(key []byte, old, token uint64, text []byte) rowstore.Swap {
	e.Helper()
	now := e.look(key).Clock.Truncate(time.Microsecond)
	return e.swap(e.rows, rowstore.Swap{Key: key, Old: old, Token: token, New: text, Time: now, Keep: time.Hour})
}

// is checks what a row is.
func (e *exam) is(key []byte, token uint64, text []byte) {
	e.Helper()
	if r := e.look(key).Row; r.Token != token || !bytes.Equal(r.Bytes, text) {
		e.failf("the row of %q has the token %d and %d bytes, want %d and %d", key, r.Token, len(r.Bytes), token, len(text))
	}
}

func (e *exam) tokens() {
	k := key()
	e.is(k, 0, nil)
	last := uint64(0)
	for i, token := range []uint64{1, 1<<63 | 1, 1<<64 - 1, 1<<63 - 1, 1 << 53, 1<<53 + 1} {
		text := []byte{byte(i)}
		for _, old := range []uint64{last + 2, last ^ 1<<62, 5} {
			if s := e.write(k, old, token, text); s.Done || s.Row.Token != last {
				e.failf("the row has the token %d; a swap of %d is done: %v, and finds %d", last, old, s.Done, s.Row.Token)
			}
		}
		if last != 0 {
			if s := e.write(k, 0, token, text); s.Done {
				e.failf("a row is made that is there already")
			}
		}
		if s := e.write(k, last, token, text); !s.Done {
			e.failf("the row has the token %d, and a swap of that is not done", last)
		}
		e.is(k, token, text)
		last = token
	}
}

func (e *exam) inTime() {
	for _, old := range []uint64{0, 7} {
		for _, alone := range []bool{false, true} {
			k := key()
			if old != 0 {
				e.write(k, 0, old, []byte("before"))
			}
			for _, apart := range []time.Duration{time.Hour, time.Minute, -1010 * time.Millisecond, -time.Hour} {
				now := e.look(k).Clock.Truncate(time.Microsecond)
				s := rowstore.Swap{Key: k, Old: old, Token: 9, New: []byte("after"), Time: now + apart, Keep: time.Hour, Alone: alone}
				if s = e.swap(e.rows, s); s.Done || s.Row.Token != old {
					e.failf("a swap whose time is %v from the clock is done (Old %d, Alone %v): does Swap check InTime?", apart, old, alone)
					return
				}
			}
		}
	}
}

func (e *exam) bytes() {
	base := key()
	for i, end := range []string{"a", "A", "a ", "a\x00", "", "\xff", "\xc3\xa9", "e\xcc\x81", "'\"\\%"} {
		k := append(base[:len(base):len(base)], end...)
		text := make([]byte, i*2_000)
		for n := range text {
			text[n] = byte(rand.Uint32())
		}
		text = append([]byte(end), text...)
		if s := e.write(k, 0, uint64(i+1), text); !s.Done {
			e.failf("a key is that of another one, which differs in its last bytes: %q", k)
			continue
		}
		e.is(k, uint64(i+1), text)
	}
}

func (e *exam) each() {
	now := e.look(key()).Clock.Truncate(time.Microsecond)
	base := key()
	var swaps []rowstore.Swap
	for i := range 40 {
		s := rowstore.Swap{Key: fmt.Appendf(base[:len(base):len(base)], "%02d", i), Token: 3, Time: now, Keep: time.Hour}
		if i%4 != 0 {
			s.New = []byte{byte(i)}
		}
		s.Old = uint64(i % 4 / 3) // there is no such row
		swaps = append(swaps, s)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := e.rows.Swap(ctx, swaps); err != nil {
		e.Fatalf("the contract says %q: %v", e.sentence, err)
	}
	for i := range swaps {
		if want := i%4 == 1 || i%4 == 2; swaps[i].Done != want || swaps[i].Clock < now {
			e.failf("swap %d of 40 is done: %v, want %v; clock %v", i, swaps[i].Done, want, swaps[i].Clock)
		}
	}
}

func (e *exam) races() {
	k := key()
	for round := range 20 {
		old := uint64(round)
		var mu sync.Mutex
		var done []uint64
		var all sync.WaitGroup
		for i := range 6 {
			rows := e.rows
			if i%2 == 1 {
				rows = e.other
			}
			token := uint64(round + 1 + i*1_000)
			all.Go(func() {
				now := e.look(k).Clock.Truncate(time.Microsecond)
				s := e.swap(rows, rowstore.Swap{Key: k, Old: old, Token: token, New: []byte{byte(i)}, Time: now, Keep: time.Hour})
				mu.Lock()
				defer mu.Unlock()
				if s.Done {
					done = append(done, token)
				}
			})
		}
		all.Wait()
		now := e.look(k).Row.Token
		if len(done) > 1 || len(done) == 1 && now != done[0] {
			e.failf("%d of 6 processes have written the row, and it has the token %d", len(done), now)
			return
		}
		if now != uint64(round+1) { // the next round begins with a token of its own
			e.write(k, now, uint64(round+1), []byte("round"))
		}
	}
}

func (e *exam) clock() {
	k := key()
	whole, last := true, time.Duration(0)
	for i := range 20 {
		c := e.look(k).Clock
		if apart := c - time.Duration(time.Now().UnixNano()); apart > time.Hour || apart < -time.Hour {
			e.failf("the clock is %v from the one of this process: is it in nanoseconds, and UTC?", apart.Round(time.Second))
			return
		}
		if whole = whole && c%time.Millisecond == 0; c < last {
			e.failf("the clock has gone back by %v", last-c)
		}
		last = c
		time.Sleep(time.Duration(i*100) * time.Microsecond)
	}
	if whole {
		e.failf("the clock has whole milliseconds: calls leave up to one too early or too late. Read microseconds, as NOW(6) does in MySQL")
	}
}

func (e *exam) locks() {
	first, ok := e.rows.(rowstore.Locker)
	if !ok {
		return
	}
	second := e.other.(rowstore.Locker)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	k := key()
	if err := first.Lock(ctx, &rowstore.Swap{Key: k}, func() { e.failf("compute is called for a row that is not there") }); err != nil {
		e.failf("Lock of a row that is not there: %v", err)
	}
	e.write(k, 0, 1, []byte("one"))
	const held = 150 * time.Millisecond
	var a, b rowstore.Swap
	locked, leave := context.WithCancel(ctx)
	var both sync.WaitGroup
	both.Go(func() {
		<-locked.Done()
		b = rowstore.Swap{Key: k}
		if err := second.Lock(ctx, &b, func() { b.New, b.Token, b.Keep = []byte("three"), 3, time.Hour }); err != nil {
			e.failf("Lock of a row that was locked: %v", err)
		}
	})
	a = rowstore.Swap{Key: k}
	err := first.Lock(ctx, &a, func() {
		leave()
		time.Sleep(held / 2)
		s := rowstore.Swap{Key: k, Old: 1, Token: 9, New: []byte("in between"), Time: a.Clock.Truncate(time.Microsecond), Keep: time.Hour}
		short, cancel := context.WithTimeout(ctx, held/2)
		defer cancel()
		swaps := []rowstore.Swap{s}
		if err := e.other.Swap(short, swaps); err == nil && swaps[0].Done {
			e.failf("another process has written a row that is locked")
		}
		<-short.Done()
		a.New, a.Token, a.Keep = []byte("two"), 2, time.Hour
	})
	leave()
	if err != nil || !a.Done {
		e.failf("Lock has written the row: %v, error %v", a.Done, err)
	}
	both.Wait()
	if b.Busy { // it has waited for as long as it may
		return
	}
	if !b.Done || b.Row.Token != 2 && b.Row.Token != 3 {
		e.failf("the second Lock has read the token %d, as it was before the wait", b.Row.Token)
	}
	if b.Clock-a.Clock < held {
		e.failf("the second Lock has waited for %v, and its clock is %v after the first: it is read before the wait", held, b.Clock-a.Clock)
	}
	if err := first.Lock(ctx, &rowstore.Swap{Key: k}, func() {}); err != nil { // New is nil
		e.failf("Lock of a row that it does not write: %v", err)
	}
	e.is(k, 3, []byte("three"))
}
