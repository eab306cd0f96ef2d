package engine

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// server is the state of one server. While it is down, one operation at a time finds out whether it
// is up, and all others fail immediately. So a server that is down adds a timeout to few calls.
type server struct {
	addr string
	ill  atomic.Bool // the server is down or denies access

	// Engine.serversMu protects the fields below.
	key   *Key      // one that it had when it last fell ill, or nil
	fell  time.Time // when it last fell ill
	cause error     // its latest error, while it is ill

	isDown bool
	since  time.Time // when it was last found down
	until  time.Time // when an operation may try again
	pause  time.Duration
	rose   time.Time // when an EventUp was last reported

	denies   bool
	reported time.Time // when an EventDenied was last reported
}

// How long operations fail without an attempt, at first and at most.
const firstPause, lastPause = 20 * time.Millisecond, 250 * time.Millisecond

// node returns the address of the node that the carrier takes for the owner of a key. It is "" if
// the store has one node, and if the carrier does not know the nodes yet.
func (e *Engine) node(k *Key) string {
	if e.config.Nodes == nil {
		return ""
	}
	return e.config.Nodes.Known(k.Bucket)
}

// server returns the state of the server at an address.
func (e *Engine) server(addr string) *server {
	e.serversMu.Lock()
	defer e.serversMu.Unlock()
	sv := e.servers[addr]
	if sv == nil {
		sv = &server{addr: addr}
		e.servers[addr] = sv
	}
	return sv
}

// refuses returns the reason why an operation fails without an attempt, or nil. The shard's lock is
// held.
func (p *pipeline) refuses(now time.Time) error {
	sv := p.server
	if !sv.ill.Load() {
		return nil
	}
	e := p.shard.Engine
	e.serversMu.Lock()
	defer e.serversMu.Unlock()
	hangs := p.out >= attemptsAtOnce && now.Sub(p.began) < e.config.Timeout
	switch {
	case !sv.isDown:
		return nil
	case p.busy || hangs || now.Before(sv.until):
		return sv.cause
	}
	sv.until = now.Add(e.config.Timeout) // or until the operation has found out
	return nil
}

// down notes that a trip has found a server down. It reports whether the server is: it may have been
// found up since the trip began.
func (e *Engine) down(sv *server, t *Trip, err error, now time.Time) bool {
	e.serversMu.Lock()
	defer e.serversMu.Unlock()
	switch {
	case sv.isDown && t.began.After(sv.since):
		sv.pause = min(2*sv.pause, lastPause)
	case sv.isDown || !t.began.After(sv.rose):
		return sv.isDown
	default:
		sv.isDown, sv.pause = true, firstPause
		e.report(store.EventDown, "", err)
	}
	sv.since, sv.key, sv.cause = now, t.Key, err
	sv.until = now.Add(sv.pause/2 + rand.N(sv.pause/2))
	sv.count(e)
	return true
}

// answered notes that the node of a key has answered a request sent at this time, with a verdict
// and its error. If it has carried the request out, that ends the outages of other servers whose
// keys it has now.
func (e *Engine) answered(q *keyQueue, v Verdict, err error, sent time.Time) {
	if v != Denied && e.ill.Load() == 0 {
		return
	}
	node, now := e.node(&q.Key), time.Now()
	e.serversMu.Lock()
	defer e.serversMu.Unlock()
	for _, sv := range e.servers {
		if sv.addr != node && (v != Done || sv.key == nil || e.node(sv.key) != node) {
			continue
		}
		switch {
		case v == Done:
			sv.denies = false
		case v == Denied:
			sv.key, sv.cause = &q.Key, err
			if !sv.denies && now.Sub(sv.reported) > time.Minute {
				sv.reported = now
				e.report(store.EventDenied, "", err)
			}
			sv.denies = true
		}
		if sv.isDown && sent.After(sv.since) { // else the request is from before the outage
			sv.isDown, sv.rose = false, now
			e.report(store.EventUp, "", nil)
		}
		sv.count(e)
	}
}

// count counts the server as ill while it is down or denies access. serversMu is held.
func (sv *server) count(e *Engine) {
	ill := sv.isDown || sv.denies
	if sv.ill.Swap(ill) == ill {
		return
	}
	if ill {
		e.ill.Add(1)
		sv.fell = time.Now()
	} else {
		e.ill.Add(-1)
		sv.cause = nil
	}
}
