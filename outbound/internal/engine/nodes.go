package engine

import (
	"context"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// recipient is where an attempt goes. While a node hangs, the carrier may hear of the one
// that was promoted only after timeouts of its own: such an attempt has a node.
type recipient struct {
	node  Node // nil: the carrier knows
	aside bool // it is asked in place of the pipeline's: if it answers, it was promoted
}

// other returns another node that may have the pipeline's keys by now, or nil: the one that
// the carrier takes for their owner, or the heir that seek has found. An heir says that it
// does not have them yet. The shard's lock is held, here and in what follows.
func (p *pipeline) other() Node {
	nodes := p.shard.config.Nodes
	if nodes == nil || nodes.Heir == nil || p.key == nil || p.aside >= attemptsAtOnce {
		return nil
	}
	if known := nodes.Known(p.key.Bucket); address(known) != p.node {
		return known
	}
	return p.heir
}

// seek finds an heir of the pipeline's node, for a batch that is late. Finding it may take
// any time, and nobody who holds a lock may wait for that.
func (p *pipeline) seek(b *batch) {
	nodes := p.shard.config.Nodes
	if nodes == nil || nodes.Heir == nil || p.key == nil || p.seeking {
		return
	}
	p.seeking = true
	key := p.key.Bucket
	go func() {
		heir := nodes.Heir(key)
		if address(heir) == p.node {
			heir = nil
		}
		p.shard.mu.Lock()
		defer p.shard.mu.Unlock()
		first := p.heir == nil
		p.seeking, p.heir = false, heir
		if first && !b.over && !b.aside && p.other() != nil {
			b.timer.Reset(0)
		}
	}()
}

// recipient returns where an attempt goes.
func (p *pipeline) recipient(aside bool) recipient {
	if aside || p.out >= attemptsAtOnce {
		if node := p.other(); node != nil {
			return recipient{node, true}
		}
	}
	if p.direct != nil && address(p.shard.config.Nodes.Known(p.key.Bucket)) == p.node {
		p.direct, p.after = nil, nil
	}
	return recipient{node: p.direct}
}

// address returns the address of a node, or "" of none.
func address(n Node) string {
	if n == nil {
		return ""
	}
	return n.Addr()
}

// count notes that an attempt begins, by 1, or has ended, by -1.
func (p *pipeline) count(to recipient, by int) {
	if to.aside {
		p.aside += by
		return
	}
	p.out += by
	if by > 0 {
		p.began = time.Now()
	}
}

// replace moves the keys of a pipeline to that of the node which has answered in its place.
func (sh *shard) replace(p *pipeline, by Node) {
	to := sh.pipe(by.Addr())
	to.key, to.direct, to.after, to.outage = p.key, by, p.server, outage{}
	for _, q := range sh.keys {
		if q.pipe == p {
			q.pipe = to
		}
	}
	for _, q := range p.ready {
		to.push(q)
	}
	clear(p.ready)
	p.ready = p.ready[:0]
}

// leave has the keys of a pipeline look for their nodes anew: others may have them by now.
func (sh *shard) leave(p *pipeline) {
	if sh.config.Nodes == nil || p.finds {
		return
	}
	finds := sh.pipe("")
	for _, q := range sh.keys {
		if q.pipe == p && !q.away && !q.queued {
			q.pipe = finds
		}
	}
}

// find moves the keys that are ready to the pipelines of their nodes. Only who asks a store
// that has not answered yet has to wait for it.
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
			p.down(sh.config.Carrier.Away(f.err), sent, time.Now())
			sh.mu.Unlock()
			return
		}
		copy(p.ready, p.ready[1:])
		p.ready = p.ready[:len(p.ready)-1]
		q.queued = false
		if f.verdict == Done {
			p.up(sent)
			sh.settle(q, sh.pipe(f.node.Addr()))
		} else {
			p.refused(f.verdict, f.err, sent)
			sh.fail(q, f.err)
		}
		sh.mu.Unlock()
	}
}

// found is what the carrier says of a key's node.
type found struct {
	node    Node
	verdict Verdict
	err     error
}

// ownerOf finds the node that has a key. It waits no longer than for a trip, whatever the
// carrier does meanwhile.
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
		return found{nil, Later, sh.config.silent()}
	}
}

// settle gives a key to the pipeline of its node, unless that is away: then the key may
// soon be another's.
func (sh *shard) settle(q *keyQueue, to *pipeline) {
	now := time.Now()
	to.key = &q.Key
	err := to.refuses(now)
	if err == nil {
		q.pipe = to
		to.push(q)
		return
	}
	var op *leak.Op
	for _, w := range q.pending {
		if w.op != nil {
			op = w.op
		}
	}
	hangs := op != nil && to.hangs(now)
	if hangs {
		q.pipe = to
		op = &leak.Op{Limits: op.Limits, Stamp: op.Stamp} // its caller goes
	}
	sh.fail(q, err)
	if hangs {
		sh.probe(q, op)
	}
}

// refresh has the nodes looked for again: by itself a client goes on for long with one that
// has died.
func (e *Engine) refresh() {
	if e.config.Nodes != nil {
		e.config.Nodes.Refresh()
	}
}
