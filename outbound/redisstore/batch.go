package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
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
	deadline time.Time
	timer    *time.Timer

	// The shard's lock protects these.
	left int   // requests without an answer
	over bool  // none is left, or the time is up
	last error // why there was no answer
}

const (
	attemptsAtOnce = 4 // of one lane: a client that hangs does not hang with all its connections
	retryPause     = 5 * time.Millisecond
	maxRetryPause  = 100 * time.Millisecond
)

// patience is how long an attempt takes before another one is begun beside it.
func (b *batch) patience() time.Duration { return b.lane.shard.store.config.Timeout / 4 }

// carryOut sends the batch. It reports whether the caller is to go on with the
// lane; else somebody else does.
func (b *batch) carryOut() bool {
	b.timer = time.AfterFunc(b.patience(), b.late)
	return b.attempt()
}

// attempt sends what has no answer yet until all have one. It reports whether it
// has brought the last.
func (b *batch) attempt() bool {
	sh := b.lane.shard
	pause := retryPause
	for {
		todo := b.begin()
		if todo == nil {
			return false
		}
		sent := time.Now()
		sh.store.send(todo, b.deadline)
		arrived := time.Now()
		decoded := make([]answer, len(todo))
		for i, s := range todo {
			if s.err == nil {
				decoded[i], s.err = decode(s.value)
			}
			decoded[i].err = s.err
		}
		ended, calm := b.take(todo, decoded, sent, arrived)
		if ended {
			b.timer.Stop()
			return true
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
	value any
	err   error
}

// begin returns what is to be sent, or nil if there is nothing, any more.
func (b *batch) begin() []*sending {
	sh := b.lane.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if b.over {
		return nil
	}
	b.lane.out++
	todo := make([]*sending, 0, b.left)
	for _, r := range b.requests {
		if !r.done {
			todo = append(todo, &sending{request: r})
		}
	}
	return todo
}

// take hands the answers on. It reports whether they were the last, and
// whether it is better to wait before asking for the rest again.
func (b *batch) take(todo []*sending, answers []answer, sent, arrived time.Time) (ended, calm bool) {
	la := b.lane
	sh := la.shard
	var out []*outcome
	defer func() {
		for _, o := range out {
			o.hand(sh)
		}
	}()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	la.out--
	failed := false
	for i, s := range todo {
		switch err := answers[i].err; {
		case s.done:
		case err == nil:
			la.up()
			s.done = true
			b.left--
			out = append(out, sh.deliver(s.request, &answers[i], sent, arrived))
		case redis.HasErrorPrefix(err, "NOSCRIPT"):
			s.known = false
		case redirects(err):
			s.alone, failed, calm = true, true, true
			b.note(err)
		case transient(err):
			failed, calm = true, true
			b.note(err)
		default:
			la.up()
			s.done = true
			b.left--
			out = append(out, sh.refuse(s.request, err))
		}
	}
	if failed {
		sh.store.reload()
	}
	if b.over {
		return false, false
	}
	b.over = b.left == 0
	return b.over, calm
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
		another := la.out < attemptsAtOnce
		b.timer.Reset(min(b.patience(), b.deadline.Sub(now)))
		sh.mu.Unlock()
		sh.store.reload()
		if another && b.attempt() {
			la.run()
		}
		return
	}
	b.over = true
	err := error(&awayError{b.cause()})
	var out []*outcome
	for _, r := range b.requests {
		if !r.done {
			r.done = true
			r.line.fence = true
			out = append(out, sh.refuse(r, err))
			sh.fail(r.line, err)
			if sh.store.cluster != nil {
				r.line.lane = nil // another node may have it by now
			}
		}
	}
	la.busy = false
	la.down(err, now)
	sh.mu.Unlock()
	for _, o := range out {
		o.hand(sh)
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
		return fmt.Errorf("no answer within %v", b.lane.shard.store.config.Timeout)
	}
	return b.last
}

// send makes one attempt.
func (s *Store) send(todo []*sending, deadline time.Time) {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	var piped []*redis.Cmd
	var pipe redis.Pipeliner
	for _, r := range todo {
		cmd := redis.NewCmd(ctx, r.command()...)
		if len(todo) == 1 || r.alone {
			_ = s.rdb.Process(ctx, once{cmd})
			r.value, r.err = cmd.Result()
			piped = append(piped, nil)
			continue
		}
		if pipe == nil {
			pipe = s.rdb.Pipeline()
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

// redirects reports whether an error says that the key is elsewhere.
func redirects(err error) bool { return hasPrefix(err, "MOVED ", "ASK ", "TRYAGAIN") }

// transient reports whether an error may be gone with the next attempt.
func transient(err error) bool {
	if errors.Is(err, redis.ErrClosed) || errors.Is(err, errReply) {
		return false
	}
	var answered redis.Error
	if !errors.As(err, &answered) {
		return true
	}
	var n net.Error
	if errors.As(err, &n) || errors.Is(err, io.EOF) {
		return true
	}
	return hasPrefix(err, "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "NOREPLICAS", "ERR max number of clients")
}

func hasPrefix(err error, prefixes ...string) bool {
	for _, p := range prefixes {
		if redis.HasErrorPrefix(err, p) || strings.HasPrefix(err.Error(), p) {
			return true
		}
	}
	return false
}
