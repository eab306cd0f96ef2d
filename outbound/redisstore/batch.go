package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
)

// batch is requests that go together, and are tried until all of them have an
// answer or the time is up. What gets no answer is asked for again under the same
// number, and the script answers a repeated number from its record: so a trip can
// be given up, and be made again, whatever has become of it.
type batch struct {
	lane     *lane
	requests []*request
	began    time.Time
	deadline time.Time

	// The shard's lock protects these.
	timer *time.Timer
	left  int   // requests without an answer
	aside bool  // another node is asked as well
	over  bool  // none is left, or the time is up
	last  error // why there was no answer
}

const (
	attemptsAtOnce = 4 // of one lane: a client that hangs does not hang with all its connections
	retryPause     = 5 * time.Millisecond
	maxRetryPause  = 100 * time.Millisecond
)

// patience is how long an attempt takes before another one is begun beside it.
func (b *batch) patience() time.Duration { return max(1, b.lane.shard.store.config.Timeout/4) }

// carryOut sends the batch. work is what the caller can wait on for more; nil: it
// cannot.
func (b *batch) carryOut(work chan struct{}) ending {
	la := b.lane
	la.shard.mu.Lock() // it may be late at once
	in := b.patience()
	if la.cause != nil && la.other() != nil {
		in = 0 // the node is known to hang, and another may have been promoted
	}
	b.timer = time.AfterFunc(in, b.late)
	la.shard.mu.Unlock()
	return b.attempt(work, false)
}

// attempt sends what has no answer yet until all have one. aside: to another node, if
// there is one that may have the keys by now.
func (b *batch) attempt(work chan struct{}, aside bool) ending {
	sh := b.lane.shard
	pause := retryPause
	for {
		todo, to := b.begin(aside)
		if todo == nil {
			return elsewhere
		}
		sent := time.Now()
		sh.store.send(to, todo, b.deadline)
		arrived := time.Now()
		for i := range todo {
			if s := &todo[i]; s.err == nil {
				s.answer, s.err = decode(s.value)
			}
		}
		end, calm := b.take(todo, to, work, sent, arrived)
		if end != elsewhere {
			return end
		}
		if calm {
			time.Sleep(pause/2 + rand.N(pause))
			pause = min(2*pause, maxRetryPause)
		}
	}
}

// sending is a request of one attempt.
type sending struct {
	*request
	known, alone bool // as when the attempt began
	value        any
	answer       answer
	err          error
}

// begin returns what is to be sent, if anything is, and to which node; nil: the client
// knows.
func (b *batch) begin(aside bool) (todo []sending, to *recipient) {
	la := b.lane
	la.shard.mu.Lock()
	defer la.shard.mu.Unlock()
	if b.over {
		return nil, nil
	}
	if to = la.recipient(aside); to != nil && to.aside {
		b.aside = true
	} else if aside && la.out >= attemptsAtOnce {
		return nil, nil // not even more that hang
	}
	la.count(to, 1)
	todo = make([]sending, 0, b.left)
	for _, r := range b.requests {
		if !r.done {
			todo = append(todo, sending{request: r, known: r.known, alone: r.alone})
		}
	}
	return todo, to
}

// take hands the answers on. It reports how the lane is left if they were the last,
// and whether it is better to wait before asking for the rest again.
func (b *batch) take(todo []sending, to *recipient, work chan struct{}, sent, arrived time.Time) (end ending, calm bool) {
	la := b.lane
	sh := la.shard
	out := make([]outcome, 0, len(todo))
	defer func() {
		for i := range out {
			out[i].hand(sh)
		}
	}()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	la.count(to, -1)
	failed, answered := false, false
	for i := range todo {
		s := &todo[i]
		switch err := s.err; {
		case s.done:
		case err == nil:
			if !answered {
				if to != nil && to.aside {
					sh.replace(la, to.client)
				}
				la.up(sent)
				sh.store.inPlace(la, sent)
			}
			answered, s.done = true, true
			b.left--
			out = append(out, sh.deliver(s.request, &s.answer, sent, arrived))
		case redis.HasErrorPrefix(err, "NOSCRIPT"):
			s.request.known = false
		case to != nil && to.aside: // it has not been promoted
			la.seek(b)
			failed, calm = true, true
		case to != nil && (redirects(err) || errors.Is(err, redis.ErrClosed)): // it is no master any more
			la.direct, la.after, failed, calm = nil, nil, true, true
			b.note(err)
		case redirects(err):
			s.request.alone, failed, calm = true, true, true
			b.note(err)
		case transient(err):
			failed, calm = true, true
			b.note(err)
		default:
			la.refused(err, sent)
			s.done = true
			b.left--
			out = append(out, sh.refuse(s.request, err))
		}
	}
	if failed {
		sh.store.reload()
	}
	if b.over {
		return elsewhere, false
	}
	if b.left > 0 {
		return elsewhere, calm
	}
	b.over = true
	b.timer.Stop()
	return la.end(work), false
}

// late is called when an attempt takes long: it begins another one, or gives up.
func (b *batch) late() {
	la := b.lane
	sh := la.shard
	sh.mu.Lock()
	if b.over {
		sh.mu.Unlock()
		return
	}
	now := time.Now()
	if now.Before(b.deadline) {
		la.seek(b)
		aside := !b.aside && la.other() != nil
		another := aside || la.out < attemptsAtOnce
		b.timer.Reset(min(b.patience(), b.deadline.Sub(now)))
		sh.mu.Unlock()
		sh.store.reload()
		if another && b.attempt(nil, aside) != elsewhere {
			la.run()
		}
		return
	}
	b.over = true
	err := error(&awayError{b.cause()})
	var out []outcome
	for _, r := range b.requests {
		if !r.done {
			r.done = true
			r.line.fence = true
			out = append(out, sh.refuse(r, err))
			sh.fail(r.line, err)
		}
	}
	la.busy = false
	la.down(err, b.began, now)
	sh.leave(la)
	sh.mu.Unlock()
	for i := range out {
		out[i].hand(sh)
	}
}

// note notes why there was no answer. That the time was up says less than what has
// happened before.
func (b *batch) note(err error) {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		b.last = err
	}
}

// cause is why there was no answer.
func (b *batch) cause() error {
	if b.last == nil {
		return b.lane.shard.store.silent()
	}
	return b.last
}

// send makes one attempt.
func (s *Store) send(to *recipient, todo []sending, deadline time.Time) {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	rdb := s.rdb
	if to != nil {
		rdb = to.client
	}
	var piped []*redis.Cmd
	var pipe redis.Pipeliner
	for i := range todo {
		r := &todo[i]
		cmd := redis.NewCmd(ctx, r.command(r.known)...)
		if len(todo) == 1 || r.alone {
			_ = rdb.Process(ctx, once{cmd})
			r.value, r.err = cmd.Result()
			piped = append(piped, nil)
			continue
		}
		if pipe == nil {
			pipe = rdb.Pipeline()
		}
		_ = pipe.Process(ctx, once{cmd})
		piped = append(piped, cmd)
	}
	if pipe == nil {
		return
	}
	_, _ = pipe.Exec(ctx)
	for i, cmd := range piped {
		if cmd != nil {
			todo[i].value, todo[i].err = cmd.Result()
		}
	}
}

// reload has a Cluster's client look for the nodes again: by itself it goes on
// dialing one that has died for a minute.
func (s *Store) reload() {
	if s.cluster != nil {
		s.cluster.ReloadState(context.Background())
	}
}
