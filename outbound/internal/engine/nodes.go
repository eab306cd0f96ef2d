package engine

import (
	"context"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// known reports whether the carrier sends a key's trips to the pipeline's node.
func (p *pipeline) known(k *Key) bool {
	nodes := p.shard.config.Nodes
	return nodes == nil || nodes.Known(k.Bucket) == p.node
}

// home returns the pipeline of the node that has answered a trip which went by p. If that is another
// node, the key is its from now on.
func (sh *shard) home(q *keyQueue, p *pipeline) *pipeline {
	if !p.known(&q.Key) {
		p = sh.pipe(sh.config.Nodes.Known(q.Bucket))
		p.key, q.pipe = &q.Key, p
	}
	return p
}

// leave makes the keys of a pipeline look for their nodes anew, because other nodes may have them
// by now.
func (sh *shard) leave(p *pipeline) {
	if p.node == "" {
		return
	}
	for _, q := range sh.keys {
		if q.pipe == p && !q.busy && !q.queued {
			q.pipe = sh.pipe("")
		}
	}
}

// requeue takes a trip out of its batch. It goes again with the same number, after a pause: to the
// node that has its key by now, or by itself if the key is Apart. So no other key waits for it.
// Attempts from before may still be under way.
func (sh *shard) requeue(t *Trip, pause time.Duration) {
	b, q := t.batch, t.queue
	b.trips = slices.DeleteFunc(b.trips, func(u *Trip) bool { return u == t })
	b.left--
	t.batch, q.trip, q.pipe = nil, t, sh.pipe("")
	if pause == 0 {
		q.pipe.push(q)
		return
	}
	time.AfterFunc(pause, func() {
		sh.mu.Lock()
		defer sh.mu.Unlock()
		if !t.done {
			q.pipe.push(q)
		}
	})
}

// find moves the ready keys to the pipelines of their nodes. Keys whose node is known do not wait
// for it.
func (p *pipeline) find() {
	sh := p.shard
	for {
		sh.mu.Lock()
		if len(p.ready) == 0 {
			p.busy = false
			sh.mu.Unlock()
			return
		}
		q := p.ready[0]
		p.out++
		p.began = time.Now()
		sent := p.began
		sh.mu.Unlock()
		f := p.ownerOf(q.Bucket)
		sh.mu.Lock()
		if f.verdict == Later {
			p.busy = false
			out := p.down(sh.config.Carrier.Unavailable(f.err), sent, time.Now())
			sh.mu.Unlock()
			sh.hand(out)
			return
		}
		copy(p.ready, p.ready[1:])
		p.ready = p.ready[:len(p.ready)-1]
		q.queued = false
		var out []outcome
		if f.verdict == Done {
			p.up(sent)
			out = sh.settle(q, sh.pipe(f.node))
		} else {
			p.refused(&q.Key, f.verdict, f.err, sent)
			out = sh.failAll(q, f.err)
		}
		sh.mu.Unlock()
		sh.hand(out)
	}
}

// found is the carrier's answer about a key's node.
type found struct {
	node    string
	verdict Verdict
	err     error
}

// ownerOf finds the node that has a key. It waits no longer than for a trip, even if the carrier
// takes longer.
func (p *pipeline) ownerOf(key string) found {
	sh := p.shard
	timeout := sh.config.forTrips()
	done := make(chan found, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		var f found
		f.node, f.verdict, f.err = sh.config.Nodes.Owner(ctx, key)
		done <- f
		sh.mu.Lock()
		p.out--
		sh.mu.Unlock()
	}()
	limit := time.NewTimer(timeout)
	defer limit.Stop()
	select {
	case f := <-done:
		return f
	case <-limit.C:
		return found{"", Later, sh.config.silent()}
	}
}

// settle gives a key to the pipeline of its node, unless that node is down: then another node may
// soon have the key.
func (sh *shard) settle(q *keyQueue, to *pipeline) []outcome {
	now := time.Now()
	to.key = &q.Key
	err := to.refuses(now)
	if err == nil {
		q.pipe = to
		to.push(q)
		return nil
	}
	sh.refresh()
	var look *store.Op // finds out whether it is up: the callers of the others go
	if to.hangs(now) {
		for _, w := range q.pending {
			if w.op != nil {
				op := like(w.op)
				look = &op
			}
		}
	}
	out := sh.failAll(q, err)
	if look != nil {
		q.pipe = to
		sh.pushOwn(q, look)
	}
	return out
}

// failAll ends all operations of a key that waits to be sent.
func (sh *shard) failAll(q *keyQueue, err error) (out []outcome) {
	sh.fail(q, err)
	if t := q.trip; t != nil {
		t.done, q.fence = true, true
		out = append(out, sh.refuse(t, err))
	}
	return out
}

// refresh makes the carrier look for the nodes again. Without it, a client continues for long with
// a node that has died.
func (e *Engine) refresh() {
	if e.config.Nodes != nil {
		e.config.Nodes.Refresh()
	}
}
