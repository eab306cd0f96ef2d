package engine

import (
	"context"
	"errors"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// recipient is the node that an attempt asks. While a node hangs, the carrier may learn of
// the promoted one only after timeouts of its own. So the engine names the node of such an
// attempt.
type recipient struct {
	node  Node // nil: the carrier chooses the node
	aside bool // the node is asked in place of the pipeline's: if it answers, it has been promoted
}

// other returns another node that may have the pipeline's keys by now, or nil. It is the
// node that the carrier takes for their owner, or the heir that seek has found. An heir
// refuses the keys until it is promoted. The shard's lock is held, here and in the
// functions below.
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
// any time, so seek does it in a goroutine that holds no lock.
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

// recipient returns the node that an attempt asks.
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

// address returns the address of a node, or "" if n is nil.
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

// replace moves the keys of a pipeline to the pipeline of the node that has answered in its
// place.
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

// leave makes the keys of a pipeline look for their nodes anew, because other nodes may
// have them by now.
func (sh *shard) leave(p *pipeline) {
	if sh.config.Nodes == nil || p.finds {
		return
	}
	for _, q := range sh.keys {
		if q.pipe == p && !q.away && !q.queued {
			sh.find(q)
		}
	}
}

// find makes a key look for its node anew, because another node may have it by now. The key is in no pipeline's list.
func (sh *shard) find(q *keyQueue) {
	if sh.config.Nodes != nil {
		q.pipe = sh.pipe("")
	}
}

// known reports whether the carrier takes the pipeline's node for a key's owner.
func (p *pipeline) known(k *Key) bool {
	nodes := p.shard.config.Nodes
	return nodes != nil && address(nodes.Known(k.Bucket)) == p.node
}

// chooseKey gives the pipeline a key that its node still has, if its own has moved: that does not mean that all have.
// It looks at a few keys, because the shard waits. The next call looks at others.
func (p *pipeline) chooseKey() {
	if p.shard.config.Nodes == nil || p.key == nil || p.direct != nil || p.known(p.key) {
		return
	}
	looked := 0
	for _, q := range p.shard.keys {
		if q.pipe == p && p.known(&q.Key) {
			p.key = &q.Key
			return
		}
		if looked++; looked == 64 {
			return
		}
	}
}

// strays returns the trips without an answer whose keys another node has: where that one does not answer, the keys of
// the batch's node do not wait for it.
func (b *batch) strays() (all []*Trip) {
	p := b.pipe
	if p.shard.config.Nodes == nil || b.apart || p.key == nil {
		return nil
	}
	here := p.direct == nil && p.known(p.key) // else another node has all keys, or none is known to have them
	for _, t := range b.trips {
		if !t.done && (t.alone || here && !p.known(t.Key)) {
			all = append(all, t)
		}
	}
	return all
}

// answerer returns the pipeline of the node that has answered an attempt of the batch, as far as the carrier knows, or
// nil if it does not. What another node answers tells nothing of the pipeline's own.
func (b *batch) answerer(a *Attempt, to recipient) *pipeline {
	p := b.pipe
	nodes := p.shard.config.Nodes
	if nodes == nil || to.node != nil {
		return p
	}
	switch known := address(nodes.Known(a.Key.Bucket)); {
	case known != "" && known != p.node:
		return p.shard.pipe(known)
	case a.Alone || b.parted: // and the carrier has not learned where its key is
		return nil
	}
	return p
}

// straysAtOnce is how many strays of a shard go on apart, and lostAtOnce how many of those have keys whose node is
// known not to answer.
const (
	straysAtOnce = 16
	lostAtOnce   = 4
)

// partStrays has strays go on apart, each by itself, because their nodes may differ. It returns those for which too
// many hang already.
func (b *batch) partStrays(strays []*Trip) (left []*Trip) {
	sh := b.pipe.shard
	for _, t := range strays {
		if sh.strays >= straysAtOnce || t.queue.astray.cause != nil && sh.strays >= lostAtOnce {
			left = append(left, t)
			continue
		}
		sh.strays++
		b.part(t).resume(func() { sh.strays-- })
	}
	return left
}

// astray begins or prolongs the outage of a key: the node that it is said to have sends it to one that does not answer,
// and only its next trip tells whether that is still so. Of many such keys one is told.
func (sh *shard) astray(q *keyQueue, err error, now time.Time) {
	if !errors.Is(err, leak.ErrAway) {
		return
	}
	if q.astray.cause == nil {
		if sh.astrays++; sh.astrays == 1 {
			sh.tell(leak.EventDown, q.Bucket, err)
		}
	}
	q.astray.prolong(err, now)
	sh.fail(q, err)
}

// inReach ends the outage of a key, because its node has answered, or because nobody uses the key any more.
func (sh *shard) inReach(q *keyQueue) {
	if q.astray.cause == nil {
		return
	}
	q.astray = outage{}
	if sh.astrays--; sh.astrays == 0 {
		sh.tell(leak.EventUp, q.Bucket, nil)
	}
}

// find moves the ready keys to the pipelines of their nodes. Keys whose node is known do
// not wait for it.
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
			p.refused(&q.Key, f.verdict, f.err, sent)
			sh.fail(q, f.err)
		}
		sh.mu.Unlock()
	}
}

// found is the carrier's answer about a key's node.
type found struct {
	node    Node
	verdict Verdict
	err     error
}

// ownerOf finds the node that has a key. It waits no longer than for a trip, even if the
// carrier takes longer.
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

// settle gives a key to the pipeline of its node, unless that node is away: then another
// node may soon have the key.
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
		op = &leak.Op{Limits: op.Limits, Stamp: op.Stamp} // the caller of op goes, so the probe needs an operation of its own
	}
	sh.fail(q, err)
	if hangs {
		sh.probe(q, op)
	}
}

// refresh makes the carrier look for the nodes again. Without it, a client goes on for long
// with a node that has died.
func (e *Engine) refresh() {
	if e.config.Nodes != nil {
		e.config.Nodes.Refresh()
	}
}
