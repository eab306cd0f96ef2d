package redisstore

import (
	"context"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// lane returns the lane to a node. That of no node, in a Cluster, finds the nodes.
func (sh *shard) lane(node string) *lane {
	la := sh.lanes[node]
	if la == nil {
		la = &lane{shard: sh, node: node, server: sh.store.server(node), finds: node == "" && sh.store.cluster != nil}
		sh.lanes[node] = la
	}
	return la
}

// find moves the lane's lines to the lanes of the nodes that have their keys. Only who
// asks a Cluster that has not answered yet has to wait for it.
func (la *lane) find() {
	sh := la.shard
	for {
		sh.mu.Lock()
		if len(la.ready) == 0 {
			la.busy = false
			sh.mu.Unlock()
			return
		}
		ln := la.ready[0]
		la.out++
		la.began = time.Now()
		sent := la.began
		sh.mu.Unlock()
		node, err := la.nodeOf(ln)
		sh.mu.Lock()
		if err != nil && transient(err) {
			la.busy = false
			la.down(&awayError{err}, sent, time.Now())
			sh.mu.Unlock()
			return
		}
		copy(la.ready, la.ready[1:])
		la.ready = la.ready[:len(la.ready)-1]
		ln.queued = false
		if err == nil {
			la.up(sent)
			sh.settle(ln, sh.lane(node))
		} else {
			la.refused(err, sent)
			sh.fail(ln, err)
		}
		sh.mu.Unlock()
	}
}

// settle moves a line to the lane of its node, unless that is away: then its key may
// soon be another's.
func (sh *shard) settle(ln *line, to *lane) {
	now := time.Now()
	to.key = ln.name.(string)
	err := to.refuses(now)
	if err == nil {
		ln.lane = to
		to.push(ln)
		return
	}
	var op *leak.Op
	for _, w := range ln.pending {
		if w.op != nil {
			op = w.op
		}
	}
	hangs := op != nil && to.hangs(now)
	if hangs {
		ln.lane = to
		op = &leak.Op{Limits: op.Limits, Stamp: op.Stamp} // its caller goes
	}
	sh.fail(ln, err)
	if hangs {
		sh.probe(ln, op)
	}
}

// leave has the lines of a lane in a Cluster look for their nodes anew: others may
// have their keys by now.
func (sh *shard) leave(la *lane) {
	if sh.store.cluster == nil || la.finds {
		return
	}
	finds := sh.lane("")
	for _, ln := range sh.lines {
		if ln.lane == la && !ln.away && !ln.queued {
			ln.lane = finds
		}
	}
}

// nodeOf returns the address of the node that has a line's key. The client heeds no
// deadline while it asks the nodes for it.
func (la *lane) nodeOf(ln *line) (string, error) {
	sh := la.shard
	timeout := sh.store.config.forTrips()
	type found struct {
		node string
		err  error
	}
	done := make(chan found, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		var f found
		c, err := sh.store.cluster.MasterForKey(ctx, ln.name.(string))
		if err == nil {
			f.node = c.Options().Addr
		}
		f.err = err
		done <- f
		sh.mu.Lock()
		la.out--
		sh.mu.Unlock()
	}()
	limit := time.NewTimer(timeout)
	defer limit.Stop()
	select {
	case f := <-done:
		return f.node, f.err
	case <-limit.C:
		return "", sh.store.silent()
	}
}
