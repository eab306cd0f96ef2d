package engine

import (
	"math/rand/v2"
	"time"
)

// pipeline holds the keys of one shard on one node. At most one batch of their trips is under way,
// and further operations gather for the next.
type pipeline struct {
	shard  *shard
	node   string // the node's address; "" if the store has one node
	key    *Key   // one of its keys; nil: it has had none yet
	server *server
	ready  []*keyQueue // keys with pending operations, or with a trip to be sent again
	busy   bool
	finds  bool          // it has no node of its own, but finds the node of each key
	worker chan struct{} // wakes the goroutine that waits for work; nil: no goroutine waits

	out   int       // number of attempts that the carrier is busy with
	began time.Time // when the last of them began
	outage
}

// outage is the time in which a server does not answer. One batch at a time tries again, and all
// other operations fail immediately. So a server that is down adds a timeout to few calls.
type outage struct {
	cause error // nil: there is no outage
	until time.Time
	pause time.Duration
}

const (
	maxBatch   = 128 // trips of one batch
	firstPause = 20 * time.Millisecond
	lastPause  = 250 * time.Millisecond

	// linger is how long a goroutine waits for more work when there is none. A new goroutine for
	// each trip would grow its stack again each time.
	linger = 100 * time.Millisecond
)

// pipe returns the pipeline to a node. If the store has several nodes, the pipeline of "" finds the
// nodes of keys.
func (sh *shard) pipe(node string) *pipeline {
	p := sh.pipes[node]
	if p == nil {
		p = &pipeline{shard: sh, node: node, server: sh.server(node), finds: node == "" && sh.config.Nodes != nil}
		sh.pipes[node] = p
	}
	return p
}

// refuses returns the reason why an operation fails without an attempt, or nil.
func (p *pipeline) refuses(now time.Time) error {
	if p.cause == nil || !p.busy && !now.Before(p.until) && p.out < attemptsAtOnce {
		return nil
	}
	return p.cause
}

// hangs reports whether the carrier hangs with as many attempts as the engine gives it, and whether
// it is time for a probe: the outage may be over, and only the old attempts may still hang.
func (p *pipeline) hangs(now time.Time) bool {
	return p.out >= attemptsAtOnce && !p.busy && now.Sub(p.began) >= p.shard.config.Timeout
}

func (p *pipeline) push(q *keyQueue) {
	q.queued = true
	p.ready = append(p.ready, q)
	switch {
	case p.busy:
	case p.worker != nil:
		p.busy = true
		p.worker <- struct{}{} // this does not block: each send takes the channel away
		p.worker = nil
	case p.finds:
		p.busy = true
		go p.find()
	default:
		p.busy = true
		go p.run()
	}
}

// run sends batch after batch, and ends when there is no work for a while. In an outage it tries
// once.
func (p *pipeline) run() {
	work := make(chan struct{}, 1)
	idle := time.NewTimer(linger)
	defer idle.Stop()
	for {
		if b := p.next(work); b != nil {
			switch b.attempt(work) {
			case handedOver:
				return
			case goOn:
				continue
			}
		}
		idle.Reset(linger)
		select {
		case <-work:
		case <-idle.C:
			if !p.retire(work) {
				return
			}
			<-work
		}
	}
}

// next makes a batch of the keys that are ready. If there is none, it marks the pipeline as free,
// and the caller waits for work.
func (p *pipeline) next(work chan struct{}) *batch {
	sh := p.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	n := min(len(p.ready), maxBatch)
	trips := make([]*Trip, 0, n)
	for _, q := range p.ready[:n] {
		q.queued = false
		t := q.trip
		if q.trip = nil; t == nil {
			t = sh.compose(q)
		}
		if t == nil { // all callers have gone
			continue
		}
		q.busy = true
		if q.Apart {
			go p.batch([]*Trip{t}, true).attempt(nil)
			continue
		}
		trips = append(trips, t)
	}
	rest := copy(p.ready, p.ready[n:])
	clear(p.ready[rest:])
	p.ready = p.ready[:rest]
	if len(trips) == 0 {
		p.busy, p.worker = false, work
		return nil
	}
	return p.batch(trips, false)
}

// successor says which goroutine sends a pipeline's next batch.
type successor uint8

const (
	handedOver successor = iota // another goroutine, which ends this batch
	goOn                        // the calling goroutine
	pause                       // the calling goroutine, once its channel reports work
)

// end returns the successor when a batch has ended. The shard's lock is held.
func (p *pipeline) end(work chan struct{}) successor {
	if len(p.ready) > 0 || work == nil {
		return goOn
	}
	p.busy, p.worker = false, work
	return pause
}

// retire takes away the waiting goroutine of this channel. It reports whether there is work for that
// goroutine after all.
func (p *pipeline) retire(work chan struct{}) bool {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	if p.worker != work {
		return true
	}
	p.worker = nil
	return false
}

// down begins or prolongs an outage, which a batch that began at began has found. It fails the
// operations that are ready. The shard's lock is held.
func (p *pipeline) down(err error, began, now time.Time) (out []outcome) {
	p.server.down(p, err, began, now)
	if p.pause == 0 {
		p.pause = firstPause
	} else {
		p.pause = min(2*p.pause, lastPause)
	}
	p.cause, p.until = err, now.Add(p.pause/2+rand.N(p.pause/2))
	for _, q := range p.ready {
		q.queued = false
		out = append(out, p.shard.failAll(q, err)...)
	}
	p.ready = nil
	return out
}

// up ends an outage: the server has answered a request sent at this time.
func (p *pipeline) up(sent time.Time) {
	p.outage = outage{}
	p.server.up(p.shard.Engine, sent)
}
