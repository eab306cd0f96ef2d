package engine

import (
	"math/rand/v2"
	"time"
)

// pipeline is the keys of one shard on one node. At most one batch of their trips is under
// way, and the others gather for the next.
type pipeline struct {
	shard  *shard
	node   string // the node's address; "" if the store has one node
	key    *Key   // one of those that it has there; nil: there was none yet
	server *server
	ready  []*keyQueue // with something pending, and no trip away
	busy   bool
	finds  bool          // it has no node, but finds that of each key
	worker chan struct{} // wakes the goroutine that waits for work; nil: none does

	out   int       // attempts that the carrier is busy with
	began time.Time // the last of them
	aside int       // attempts at other nodes that it is busy with

	direct  Node    // the node, if the carrier does not know yet that it has the keys
	after   *server // whose keys they were
	seeking bool    // a goroutine asks for an heir of the node
	heir    Node    // that it has found; nil: none
	outage
}

// outage is a server that does not answer. One batch at a time tries again, and
// the others are answered at once: a server that is away adds a timeout to few
// calls and not to all.
type outage struct {
	cause error // nil: there is none
	until time.Time
	pause time.Duration
}

const (
	maxBatch   = 128 // trips of one batch
	firstPause = 20 * time.Millisecond
	lastPause  = 250 * time.Millisecond

	// linger is how long a goroutine waits for more work when there is none: a
	// new one for each trip would grow its stack again in each.
	linger = 100 * time.Millisecond
)

// pipe returns the pipeline to a node. That of no node finds the nodes, if there are several.
func (sh *shard) pipe(node string) *pipeline {
	p := sh.pipes[node]
	if p == nil {
		p = &pipeline{shard: sh, node: node, server: sh.server(node), finds: node == "" && sh.config.Nodes != nil}
		sh.pipes[node] = p
	}
	return p
}

// refuses returns why an operation is not even to be tried.
func (p *pipeline) refuses(now time.Time) error {
	if p.cause == nil || !p.busy && !now.Before(p.until) && (p.out < attemptsAtOnce || p.other() != nil) {
		return nil
	}
	return p.cause
}

// hangs reports whether the carrier hangs with as many attempts as it is given, and it
// is time to try one more that nobody waits for: what hangs may be all that is left of
// an outage.
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
		p.worker <- struct{}{} // which has room: it is given away with this
		p.worker = nil
	case p.finds:
		p.busy = true
		go p.find()
	default:
		p.busy = true
		go p.run()
	}
}

// run sends batch after batch, and ends when there is nothing for a while. In an
// outage it tries once.
func (p *pipeline) run() {
	work := make(chan struct{}, 1)
	idle := time.NewTimer(linger)
	defer idle.Stop()
	for {
		if b := p.next(work); b != nil {
			switch b.carryOut(work) {
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
			if !p.leave(work) {
				return
			}
			<-work
		}
	}
}

// next takes what has gathered. If that is nothing, the pipeline is free, and the caller
// waits for work.
func (p *pipeline) next(work chan struct{}) *batch {
	sh := p.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	n := min(len(p.ready), maxBatch)
	b := &batch{pipe: p, trips: make([]*Trip, 0, n)}
	for _, q := range p.ready[:n] {
		q.queued = false
		if t := sh.compose(q); t != nil { // else its callers have gone
			q.away = true
			b.trips = append(b.trips, t)
		}
	}
	rest := copy(p.ready, p.ready[n:])
	clear(p.ready[rest:])
	p.ready = p.ready[:rest]
	if len(b.trips) == 0 {
		p.busy, p.worker = false, work
		return nil
	}
	b.left = len(b.trips)
	b.began = time.Now()
	b.deadline = b.began.Add(sh.config.forTrips())
	return b
}

// successor says which goroutine sends a pipeline's next batch.
type successor uint8

const (
	handedOver successor = iota // another one, which ends this batch
	goOn                        // the caller
	pause                       // the caller, once the channel that it has given tells it of work
)

// end is who goes on when a batch has ended. The shard's lock is held.
func (p *pipeline) end(work chan struct{}) successor {
	if len(p.ready) > 0 || work == nil {
		return goOn
	}
	p.busy, p.worker = false, work
	return pause
}

// leave takes the goroutine away that waits with this channel. It reports whether
// there is work for it after all.
func (p *pipeline) leave(work chan struct{}) bool {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	if p.worker != work {
		return true
	}
	p.worker = nil
	return false
}

// down begins or prolongs an outage, of what was tried from began on. The shard's lock is
// held.
func (p *pipeline) down(err error, began, now time.Time) {
	p.server.down(p, err, began, now)
	if p.pause == 0 {
		p.pause = firstPause
	} else {
		p.pause = min(2*p.pause, lastPause)
	}
	p.cause, p.direct, p.after = err, nil, nil
	p.until = now.Add(p.pause/2 + rand.N(p.pause/2))
	for _, q := range p.ready {
		q.queued = false
		p.shard.fail(q, err)
	}
	p.ready = nil
}

// up ends an outage: the server has answered what was sent at this time.
func (p *pipeline) up(sent time.Time) {
	p.outage = outage{}
	p.heir = nil // another outage may find another one
	p.server.up(p.shard.Engine, sent)
}
