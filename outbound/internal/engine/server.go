package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// server is the state of one server, as all the pipelines to it have found it.
type server struct {
	ill atomic.Bool // the server is down or denies access

	mu       sync.Mutex // protects the fields below
	fell     time.Time  // when it fell ill the last time
	cause    error      // its latest error, while it is ill
	isDown   bool
	key      *Key // one of the keys that it had when it last fell ill; nil: unknown
	since    time.Time
	rose     time.Time // when an EventUp was last reported
	denies   bool
	reported time.Time // when an EventDenied was last reported
}

// server returns the state of the server at an address.
func (e *Engine) server(addr string) *server {
	e.serversMu.Lock()
	defer e.serversMu.Unlock()
	sv := e.servers[addr]
	if sv == nil {
		sv = new(server)
		e.servers[addr] = sv
	}
	return sv
}

// down notes that a pipeline's server is down, as a batch that began at began has found. If another
// pipeline has found the server up since then, down does nothing.
func (sv *server) down(p *pipeline, err error, began, now time.Time) {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	if !sv.isDown && !began.After(sv.rose) {
		return
	}
	sv.since, sv.key, sv.cause = now, p.key, err
	if !sv.isDown {
		sv.isDown = true
		sv.count(p.shard.Engine)
		p.shard.report(store.EventDown, "", err)
	}
}

// up notes that the server has carried out a request sent at this time.
func (sv *server) up(e *Engine, sent time.Time) {
	if !sv.ill.Load() {
		return
	}
	sv.mu.Lock()
	defer sv.mu.Unlock()
	sv.denies = false
	sv.answered(e, sent)
}

// answered notes that the server has answered a request sent at this time. If the request was sent
// before the server was found down, the answer does not end that. mu is held.
func (sv *server) answered(e *Engine, sent time.Time) {
	if sv.isDown && sent.After(sv.since) {
		sv.isDown, sv.rose = false, time.Now()
		e.report(store.EventUp, "", nil)
	}
	sv.count(e)
}

// count counts the server as ill while it is down or denies access. mu is held.
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

// refused remembers an error that the server has answered to a request for a key, sent at this time.
func (p *pipeline) refused(k *Key, v Verdict, err error, sent time.Time) {
	if v == Unasked {
		return
	}
	p.outage = outage{}
	sv := p.server
	sv.mu.Lock()
	defer sv.mu.Unlock()
	if v == Denied {
		sv.key, sv.cause = k, err
	}
	if now := time.Now(); v == Denied && !sv.denies {
		sv.denies = true
		if sv.reported.IsZero() || now.Sub(sv.reported) > time.Minute {
			sv.reported = now
			p.shard.report(store.EventDenied, "", err)
		}
	}
	sv.answered(p.shard.Engine, sent)
}

// inPlace notes that a pipeline's server has carried out a request sent at this time. That ends the
// outages of other servers if this one has their keys now.
func (e *Engine) inPlace(p *pipeline, sent time.Time) {
	if e.config.Nodes == nil || e.ill.Load() == 0 {
		return
	}
	e.serversMu.Lock()
	defer e.serversMu.Unlock()
	for _, sv := range e.servers {
		if sv == p.server || !sv.ill.Load() {
			continue
		}
		sv.mu.Lock()
		key := sv.key
		sv.mu.Unlock()
		if key != nil && p.known(key) {
			sv.up(e, sent)
		}
	}
}
