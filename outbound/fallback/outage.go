package fallback

import (
	"context"
	"errors"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// leave marks the store away.
func (s *Store) leave(err error) {
	s.mu.Lock()
	t := now()
	if !s.breaker.leave(err, t) {
		s.mu.Unlock()
		return
	}
	s.scheduleLocked(t)
	s.notices = append(s.notices, func() { s.OnSwitch(true, err) })
	s.mu.Unlock()
	s.announce()
}

// scheduleLocked sets the time of the next try. Where calls fail meanwhile, one of them
// makes the try. Where calls go on, a timer makes it, whether calls come or not: a worker
// that came back long after the others would use its share beside all that they use.
func (s *Store) scheduleLocked(t time.Duration) {
	if in := s.breaker.postpone(t); !s.fails() {
		time.AfterFunc(in, s.try)
	}
}

// tryWith has a call make the try. cause is why the store was away before.
func (s *Store) tryWith(ctx context.Context, key string, op *leak.Op, cause error) (leak.Reply, error) {
	result := cause // the try tells nothing if the caller gives up or the store panics
	defer func() { s.tried(result, 0) }()
	r, err := s.Store.Update(ctx, key, op)
	if err == nil || ctx.Err() == nil {
		result = err
	}
	return r, err
}

// try asks the store when this worker is to return. The first worker books a unit that
// takes returnWait to leak. The store refuses the others and tells them how much of that
// time is left.
func (s *Store) try() {
	op := leak.Op{Limits: []leak.Limit{{Capacity: 1, Rate: 1 / returnWait.Seconds()}}}
	if !s.Unlimited {
		op.Action, op.Costs = leak.Book, []leak.Units{{1}}
	}
	r, err := s.Store.Update(context.Background(), meetingKey, &op)
	wait := r.Wait
	if len(r.Charges) > 0 || err != nil { // it is the first, or cannot know
		wait = returnWait
	}
	s.tried(err, wait)
}

// tried handles the outcome of a try. A store that refuses the try with an error of
// another kind is there; the worker returns to it after the wait.
func (s *Store) tried(err error, wait time.Duration) {
	if errors.Is(err, leak.ErrAway) {
		s.mu.Lock()
		s.breaker.cause = err
		s.scheduleLocked(now())
		s.mu.Unlock()
		return
	}
	if wait = min(wait, returnWait); wait > 0 {
		s.mu.Lock()
		s.breaker.returns, s.breaker.until = true, now()+wait
		s.mu.Unlock()
		time.AfterFunc(wait, s.comeBack)
		return
	}
	s.comeBack()
}

// comeBack uses the store again and charges it with what every key has spent.
func (s *Store) comeBack() {
	pause := chargePause
	if s.fails() {
		pause = 0 // nobody has spent anything
	}
	s.mu.Lock()
	back := now()
	s.breaker.comeBack(back, pause)
	s.settleLocked()
	s.notices = append(s.notices, func() { s.OnSwitch(false, nil) })
	s.mu.Unlock()
	s.announce()
	s.chargeKeys(back)
}

// settleLocked ends the return if nothing is left to do.
func (s *Store) settleLocked() { s.breaker.settle(now(), len(s.keys)) }

// announce makes the calls of OnSwitch in their order. If another goroutine is doing so, it
// makes the new ones as well.
func (s *Store) announce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.announcing && len(s.notices) > 0 {
		notify := s.notices[0]
		s.notices = s.notices[1:]
		if s.OnSwitch != nil {
			s.announcing = true
			s.callLocked(notify)
		}
	}
}

// callLocked calls notify without the lock.
func (s *Store) callLocked(notify func()) {
	s.mu.Unlock()
	defer func() { // OnSwitch may panic
		s.mu.Lock()
		s.announcing = false
	}()
	notify()
}
