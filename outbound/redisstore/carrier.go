package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// carrier is an [engine.Carrier]: a trip is one run of the script.
type carrier struct {
	rdb    redis.UniversalClient
	config Config
	worker atomic.Value // this Store's field in the buckets' hashes, a string
}

// rename gives the Store another field in the hashes. It begins with no record there.
func (c *carrier) rename() {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	c.worker.Store("w" + string(id[:]))
}

// key is what is known of a key.
type key struct {
	name     any   // the server's, a string
	heard    int64 // the last trip that is known to be on record; -1: not known
	header   header
	badStamp float64 // of limits that were set and cannot be read; 0: there are none
	life
}

// Compose implements [engine.Carrier].
func (c *carrier) Compose(t *engine.Trip) {
	k, _ := t.Key.State.(*key)
	if k == nil {
		k = &key{name: c.config.name(t.Key.Bucket), heard: -1}
		t.Key.State = k
	}
	t.State = encode(t, k, c.worker.Load())
}

// Send implements [engine.Carrier].
func (c *carrier) Send(ctx context.Context, to engine.Node, todo []engine.Attempt) {
	var rdb interface {
		redis.Cmdable
		Process(context.Context, redis.Cmder) error
	} = c.rdb
	if to != nil {
		rdb = to.(node)
	}
	cmds := make([]*redis.Cmd, len(todo))
	var pipe redis.Pipeliner
	for i := range todo {
		a := &todo[i]
		cmds[i] = redis.NewCmd(ctx, a.State.(*request).command()...)
		if len(todo) == 1 || a.Alone {
			_ = rdb.Process(ctx, once{cmds[i]})
			continue
		}
		if pipe == nil {
			pipe = rdb.Pipeline()
		}
		_ = pipe.Process(ctx, once{cmds[i]})
	}
	if pipe != nil {
		_, _ = pipe.Exec(ctx)
	}
	arrived := time.Now()
	notes := make([]note, len(todo))
	for i := range todo {
		a := &todo[i]
		a.Note, a.Arrived = &notes[i], arrived
		value, err := cmds[i].Result()
		if err == nil {
			err = notes[i].read(a, value)
		}
		a.Err = err
	}
}

// Take implements [engine.Carrier].
func (c *carrier) Take(a *engine.Attempt) engine.Verdict {
	k := a.Key.State.(*key)
	if a.Err == nil {
		k.badStamp = 0
		if !a.Reply.Stale {
			a.Loss = k.learn(a)
		}
		return engine.Done
	}
	var u *unreadable
	switch {
	case redis.HasErrorPrefix(a.Err, "NOSCRIPT"):
		a.State.(*request).unknown.Store(true)
		return engine.Again
	case a.Aside:
	case errors.Is(a.Err, errAhead):
		c.rename()
		a.Reply.Garbage = true
	case errors.As(a.Err, &u): // the next trip says so, and the script takes them for garbage
		k.badStamp = u.stamp
		if a.Op.Stamp == 0 {
			return engine.Anew
		}
		a.Reply = leak.Reply{Limit: -1, Stale: true} // as if none were set
		return engine.Done
	}
	return verdict(a.Err)
}

// Away implements [engine.Carrier].
func (c *carrier) Away(cause error) error {
	if errors.Is(cause, redis.ErrPoolTimeout) || errors.Is(cause, redis.ErrPoolExhausted) {
		return engine.Away("redisstore: the client has no connection left, as PoolSize allows", cause)
	}
	return engine.Away("redisstore: the server is away", cause)
}

// once is a command that the client must not send twice by itself: it cannot know
// that a lost reply is not a lost command.
type once struct{ *redis.Cmd }

// NoRetry is what the client asks a command.
func (once) NoRetry() bool { return true }
