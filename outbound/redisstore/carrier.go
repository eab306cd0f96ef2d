package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	mrand "math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// carrier is an [engine.Carrier]: an attempt is one run of the script.
type carrier struct {
	rdb     Client
	cluster clusterClient // rdb, if it is for a Cluster
	config  Config
	worker  atomic.Value // this Store's field in the keys' hashes, a string
	trip    atomic.Int64 // how long a round trip takes, in ns: an average
	found   atomic.Bool  // the client of a Cluster knows the nodes
	bare    atomic.Bool  // the server has not what a hot step needs
}

// rename gives the Store another field in the hashes, in which it has no record yet.
func (c *carrier) rename() {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	c.worker.Store("w" + string(id[:]))
}

// The longest time for which a process that has lost a race reserves the key.
const maxReserve = 500 * time.Millisecond

// apartFor is for how long a key goes by swap after the script has booked other calls than Go
// would.
const apartFor = time.Minute

// Compose implements [engine.Carrier].
func (c *carrier) Compose(t *engine.Trip) {
	k, _ := t.Key.State.(*key)
	if k == nil {
		k = &key{name: c.config.name(t.Key.Bucket)}
		t.Key.State = k
	}
	k.cold = k.cold || c.bare.Load()
	reserve := min(max(time.Millisecond, 2*time.Duration(c.trip.Load())), maxReserve)
	q := compose(k, c.worker.Load(), &t.Op, t.Seq, t.Fence, t.Clock, reserve)
	if q.mode == hot {
		q.args = append(q.args, t.Last)
	}
	q.pause, k.pause = k.pause, 0
	t.State = q
}

// Send implements [engine.Carrier].
func (c *carrier) Send(ctx context.Context, todo []engine.Attempt) {
	if first := todo[0].State.(*request); first.pause > 0 { // another process has the key; no other key waits
		timer := time.NewTimer(min(first.pause, time.Millisecond+mrand.N(2*time.Millisecond)))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	if err := c.find(ctx); err != nil {
		for i := range todo {
			todo[i].Err = err
		}
		return
	}
	cmds := make([]*redis.Cmd, len(todo))
	began := time.Now()
	var pipe redis.Pipeliner
	for i := range todo {
		q := todo[i].State.(*request)
		cmds[i] = redis.NewCmd(ctx, q.command()...)
		if len(todo) == 1 || q.moved.Load() {
			_ = c.rdb.Process(ctx, once{cmds[i]})
			continue
		}
		if pipe == nil {
			pipe = c.rdb.Pipeline()
		}
		_ = pipe.Process(ctx, once{cmds[i]})
	}
	if pipe != nil {
		_, _ = pipe.Exec(ctx)
	}
	arrived := time.Now()
	answers := make([]answer, len(todo))
	for i := range todo {
		a := &todo[i]
		a.Note, a.Arrived = &answers[i], arrived
		value, err := cmds[i].Result()
		if err == nil {
			answers[i], err = a.State.(*request).read(value, a.Into, &a.Reply)
		}
		if a.Err = err; err == nil {
			old := c.trip.Load()
			c.trip.Store(old + (int64(arrived.Sub(began))-old)/8)
			answers[i].fill(a)
		}
	}
}

// fill writes what the engine has to know of an answer.
func (r *answer) fill(a *engine.Attempt) {
	a.Now, a.Err, a.Recorded = r.now, r.err, r.last
	if r.err != nil {
		return
	}
	if r.wrote || r.repeated {
		a.Keep = r.keep()
	}
	if r.differs {
		a.Doubt = errDiffers
	}
}

// keep returns for how long the server keeps a key that was just written, at least.
func (r *answer) keep() time.Duration {
	keep := min(max(0, r.reply.Expire), farthest/4) + spare/2
	if r.row != nil && r.row.stored.Set {
		keep -= keepSet / 2
	}
	return keep
}

// Take implements [engine.Carrier].
func (c *carrier) Take(a *engine.Attempt) engine.Verdict {
	k, q := a.Key.State.(*key), a.State.(*request)
	r, _ := a.Note.(*answer)
	if r == nil || a.Err != nil && a.Err != r.err {
		if redis.HasErrorPrefix(a.Err, "NOSCRIPT") {
			q.unknown.Store(true)
			return engine.Again
		}
		if q.mode == hot && strings.Contains(a.Err.Error(), "user_script:") && !transient(a.Err) && !denied(a.Err) { // it cannot read the key
			k.cold = true
			return engine.Requeue
		}
		v := verdict(a.Err)
		q.moved.Store(v == engine.Elsewhere)
		return v
	}
	a.Key.Apart = false
	if r.row != nil {
		k.row = r.row
	}
	switch {
	case r.err == nil:
		k.cold = false
		if r.wrote {
			k.until = r.now + r.keep()
		}
		if r.differs {
			k.apart = r.now + apartFor
		}
		return engine.Done
	case r.word == "busy":
		a.Key.Apart, k.pause = true, r.left
	case errors.Is(r.err, errOld): // the field holds what this Store has not written
		c.rename()
		a.Reply.Corrupt = true
		return engine.Failed
	case r.word == "bare":
		c.bare.Store(true)
	case r.word == "cold" || q.mode == hot && (r.row == nil || r.row.seen == "" || r.row.edition == q.row.edition):
		k.cold = r.word != "missing" && r.word != "late" && r.word != "lost"
	}
	return engine.Requeue
}

// Unavailable implements [engine.Carrier].
func (c *carrier) Unavailable(cause error) error {
	if errors.Is(cause, redis.ErrPoolTimeout) || errors.Is(cause, redis.ErrPoolExhausted) {
		return engine.Unavailable("redisstore: the client has no connection left, as PoolSize allows", cause)
	}
	return engine.Unavailable("redisstore: the server is unavailable", cause)
}

var _ store.Store = (*Store)(nil)

// once is a command that the client must not send twice by itself: it cannot know that a lost reply
// is not a lost command.
type once struct{ *redis.Cmd }

// NoRetry is what the client asks a command.
func (once) NoRetry() bool { return true }
