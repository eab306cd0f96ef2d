package redisstore

import (
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
)

// lane is the lines of one shard on one server. At most one batch of their
// requests is under way, and the others gather for the next.
type lane struct {
	shard  *shard
	node   string // the server's address in a Cluster
	key    string // one of the keys that it has there
	server *server
	ready  []*line // with something pending, and nothing away
	busy   bool
	finds  bool          // it has no server, but finds that of each line
	out    int           // attempts that the client is busy with
	began  time.Time     // the last of them
	aside  int           // attempts at other nodes that it is busy with
	direct *redis.Client // of the node, if the client does not know yet that it has the keys
	after  *server       // whose keys those were
	spare  chan struct{} // wakes the goroutine that waits for work; nil: none does

	seeking bool          // a goroutine asks the client for a replica of the node
	replica *redis.Client // that it has found; nil: none
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

	// linger is how long a goroutine waits for more work when there is none: a
	// new one for each trip would grow its stack again in each.
	linger = 100 * time.Millisecond
)

// refuses returns why an operation is not even to be tried.
func (la *lane) refuses(now time.Time) error {
	if la.cause == nil || !la.busy && !now.Before(la.until) && (la.out < attemptsAtOnce || la.other() != nil) {
		return nil
	}
	return la.cause
}

// hangs reports whether the client hangs with as many attempts as it is given, and it
// is time to try one more that nobody waits for: what hangs may be all that is left of
// an outage.
func (la *lane) hangs(now time.Time) bool {
	return la.out >= attemptsAtOnce && !la.busy && now.Sub(la.began) >= la.shard.store.config.Timeout
}

func (la *lane) push(ln *line) {
	ln.queued = true
	la.ready = append(la.ready, ln)
	if la.busy {
		return
	}
	la.busy = true
	if la.spare != nil {
		la.spare <- struct{}{} // which has room: it is given away with this
		la.spare = nil
		return
	}
	if la.finds {
		go la.find()
		return
	}
	go la.run()
}

// run sends batch after batch, and ends when there is nothing for a while. In an
// outage it tries once.
func (la *lane) run() {
	work := make(chan struct{}, 1)
	idle := time.NewTimer(linger)
	defer idle.Stop()
	for {
		if b := la.next(work); b != nil {
			switch b.carryOut(work) {
			case elsewhere:
				return
			case onward:
				continue
			}
		}
		idle.Reset(linger)
		select {
		case <-work:
		case <-idle.C:
			if !la.leave(work) {
				return
			}
			<-work
		}
	}
}

// ending is how the end of a batch leaves a lane to who has carried it out.
type ending uint8

const (
	elsewhere ending = iota // somebody else ends it, and goes on with the lane
	onward                  // the caller goes on with the lane
	resting                 // the lane is free, and the caller's channel its spare
)

// leave takes the goroutine away that waits with this channel. It reports whether
// there is work for it after all.
func (la *lane) leave(work chan struct{}) bool {
	la.shard.mu.Lock()
	defer la.shard.mu.Unlock()
	if la.spare != work {
		return true
	}
	la.spare = nil
	return false
}

// end is how it is left when a batch has ended. The shard's lock is held.
func (la *lane) end(work chan struct{}) ending {
	if len(la.ready) > 0 || work == nil {
		return onward
	}
	la.busy, la.spare = false, work
	return resting
}

// next takes what has gathered. If that is nothing, the lane is free, and the caller
// waits for work.
func (la *lane) next(work chan struct{}) *batch {
	sh := la.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	n := min(len(la.ready), maxBatch)
	b := &batch{lane: la, requests: make([]*request, 0, n)}
	for _, ln := range la.ready[:n] {
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
		la.busy, la.spare = false, work
		return nil
	}
	b.left = len(b.requests)
	b.began = time.Now()
	b.deadline = b.began.Add(sh.store.config.forTrips())
	return b
}

// down begins or prolongs an outage, of what was tried from began on. The shard's lock is
// held.
func (la *lane) down(err error, began, now time.Time) {
	la.server.down(la, err, began, now)
	if la.pause == 0 {
		la.pause = firstPause
	} else {
		la.pause = min(2*la.pause, lastPause)
	}
	la.cause, la.direct, la.after = err, nil, nil
	la.until = now.Add(la.pause/2 + rand.N(la.pause/2))
	for _, ln := range la.ready {
		ln.queued = false
		la.shard.fail(ln, err)
	}
	la.ready = nil
}

// up ends an outage: the server has answered what was sent at this time.
func (la *lane) up(sent time.Time) {
	if la.cause != nil {
		la.outage = outage{}
	}
	la.replica = nil // another outage may find another one
	la.server.up(la.shard.store, sent)
}
