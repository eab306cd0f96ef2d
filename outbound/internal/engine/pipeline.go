package engine

import (
	"slices"
	"time"
)

// pipeline holds the keys of one shard on one node. It waits for one batch of their trips at a time,
// and further operations gather for the next.
type pipeline struct {
	shard  *shard
	server *server
	ready  []*keyQueue // keys with pending operations, or with a trip to be sent again
	busy   bool        // it waits for a batch, or a goroutine is about to make one

	out   int       // number of Sends under way, except those of keys that are Apart
	began time.Time // when the last of them began
}

const (
	maxBatch = 128 // trips of one batch

	// linger is how long a goroutine waits for more work when there is none. A new goroutine for
	// each trip would grow its stack again each time.
	linger = 100 * time.Millisecond
)

// pipe returns the pipeline to the node that has a key now.
func (sh *shard) pipe(q *keyQueue) *pipeline {
	node := sh.node(&q.Key)
	p := sh.pipes[node]
	if p == nil {
		p = &pipeline{shard: sh, server: sh.server(node)}
		sh.pipes[node] = p
	}
	return p
}

// push has a key's next trip, or the one to be sent again, go with the next batch.
func (sh *shard) push(q *keyQueue) {
	if q.queued {
		return
	}
	q.queued = true
	p := sh.pipe(q)
	p.ready = append(p.ready, q)
	p.begin()
}

// begin has a batch go if there are keys for it.
func (p *pipeline) begin() {
	if !p.busy && len(p.ready) > 0 {
		p.busy = true
		p.shard.start(p)
	}
}

// run sends batch after batch, until there is none or another goroutine goes on with the pipeline.
func (p *pipeline) run() {
	for b := p.next(); b != nil && b.send(); {
		b = p.next()
	}
}

// next makes a batch of the keys that are ready. If there is none, the pipeline is free.
func (p *pipeline) next() *batch {
	sh := p.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := time.Now()
	for len(p.ready) > 0 {
		n := min(len(p.ready), maxBatch)
		b := &batch{pipe: p}
		b.trips = slices.Grow(b.one[:0], n)
		for _, q := range p.ready[:n] {
			q.queued = false
			if q.trip == nil {
				q.trip = p.compose(q, now)
			}
			switch {
			case q.trip == nil: // all callers have gone
			case q.Apart:
				alone := &batch{pipe: p, apart: true, over: true}
				alone.add(q.trip)
				alone.begin(now)
				sh.start(alone)
			default:
				b.add(q.trip)
			}
		}
		p.ready = slices.Delete(p.ready, 0, n)
		if len(b.trips) > 0 {
			p.out++
			p.began = now
			b.begin(now)
			return b
		}
	}
	p.busy = false
	return nil
}

// work is what a goroutine does: a pipeline, or the batch of a key that is Apart.
type work interface{ run() }

// start runs w in a goroutine: in one that is left over, or in a new one.
func (sh *shard) start(w work) {
	if sh.work == nil {
		sh.work = make(chan work)
	}
	select {
	case sh.work <- w:
	default:
		go sh.run(w)
	}
}

// run runs w, and further work until there is none for a while.
func (sh *shard) run(w work) {
	idle := time.NewTimer(linger)
	defer idle.Stop()
	for w != nil {
		w.run()
		idle.Reset(linger)
		select {
		case w = <-sh.work:
		case <-idle.C:
			w = nil
		}
	}
}
