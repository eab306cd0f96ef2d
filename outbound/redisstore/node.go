package redisstore

import (
	"context"
	"time"
)

// lane returns the lane to a node. That of no node, in a Cluster, finds the nodes.
func (sh *shard) lane(node string) *lane {
	la := sh.lanes[node]
	if la == nil {
		la = &lane{shard: sh, finds: node == "" && sh.store.cluster != nil}
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
		sh.mu.Unlock()
		node, err := la.nodeOf(ln)
		sh.mu.Lock()
		if err != nil {
			la.busy = false
			la.down(&awayError{err}, time.Now())
			sh.mu.Unlock()
			return
		}
		la.up()
		copy(la.ready, la.ready[1:])
		la.ready = la.ready[:len(la.ready)-1]
		ln.queued = false
		ln.lane = sh.lane(node)
		if err := ln.lane.refuses(time.Now()); err != nil {
			sh.fail(ln, err)
		} else {
			ln.lane.push(ln)
		}
		sh.mu.Unlock()
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
