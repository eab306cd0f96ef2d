package redisstore

import (
	"math/rand/v2"
	"time"
)

// lane is the lines of one shard on one server. At most one batch of their
// requests is under way, and the others gather for the next.
type lane struct {
	shard *shard
	ready []*line // with something pending, and nothing away
	busy  bool
	out   int // attempts that the client is busy with
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
	maxBatch   = 128 // requests of one batch
	firstPause = 20 * time.Millisecond
	lastPause  = 250 * time.Millisecond
)

// refuses returns why an operation is not even to be tried.
func (la *lane) refuses(now time.Time) error {
	if la == nil || la.cause == nil || !la.busy && la.out < attemptsAtOnce && !now.Before(la.until) {
		return nil
	}
	return la.cause
}

func (la *lane) push(ln *line) {
	ln.queued = true
	la.ready = append(la.ready, ln)
	if !la.busy {
		la.busy = true
		go la.run()
	}
}

// run sends batch after batch until nothing is left. In an outage it tries once.
func (la *lane) run() {
	for {
		b := la.next()
		if b == nil {
			return
		}
		if !b.carryOut() {
			return // whoever ends it goes on in its place
		}
	}
}

// next takes what has gathered, or ends the run.
func (la *lane) next() *batch {
	sh := la.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	b := &batch{lane: la, deadline: time.Now().Add(sh.store.config.Timeout * 19 / 20)}
	n := 0
	for ; n < len(la.ready) && len(b.requests) < maxBatch; n++ {
		ln := la.ready[n]
		ln.queued = false
		if r := sh.compose(ln); r != nil { // else its callers have gone
			ln.away = true
			b.requests = append(b.requests, r)
		}
	}
	rest := copy(la.ready, la.ready[n:])
	clear(la.ready[rest:])
	la.ready = la.ready[:rest]
	if len(b.requests) == 0 {
		la.busy = false
		return nil
	}
	b.left = len(b.requests)
	return b
}

// down begins or prolongs an outage. The shard's lock is held.
func (la *lane) down(err error, now time.Time) {
	if la.pause == 0 {
		la.pause = firstPause
		go la.shard.store.tell(EventAway, "", err)
	} else {
		la.pause = min(2*la.pause, lastPause)
	}
	la.cause = err
	la.until = now.Add(la.pause/2 + rand.N(la.pause/2))
	for _, ln := range la.ready {
		ln.queued = false
		la.shard.fail(ln, err)
	}
	la.ready = nil
}

// up ends an outage.
func (la *lane) up() {
	if la.cause != nil {
		la.outage = outage{}
		go la.shard.store.tell(EventBack, "", nil)
	}
}
