package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// server is the state of one server, as all the pipelines to it have told it.
type server struct {
	ill atomic.Bool // the server is away or denies access

	mu     sync.Mutex // protects the fields below
	fell   time.Time  // when it fell ill the last time
	cause  error      // its latest error, while it is ill
	away   bool
	key    *Key // one of the keys that it had when it last fell ill; nil: unknown
	since  time.Time
	back   time.Time // when a Back event was last told
	denies bool
	told   time.Time // when a Denial event was last told
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

// down notes that a pipeline's server is away, as a batch that began at began has found. If
// another pipeline has found the server back since then, down does nothing.
func (sv *server) down(p *pipeline, err error, began, now time.Time) {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	if !sv.away && !began.After(sv.back) {
		return
	}
	sv.since, sv.key, sv.cause = now, p.key, err
	if !sv.away {
		sv.away = true
		sv.count(p.shard.Engine)
		p.shard.tell(leak.EventDown, "", err)
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

// answered takes it that the server has answered a request sent at this time. If the request
// was sent before the server was found away, the answer does not bring it back. mu is held.
func (sv *server) answered(e *Engine, sent time.Time) {
	if sv.away && sent.After(sv.since) {
		sv.away, sv.back = false, time.Now()
		e.tell(leak.EventUp, "", nil)
	}
	sv.count(e)
}

// count counts the server as ill while it is away or denies access. mu is held.
func (sv *server) count(e *Engine) {
	ill := sv.away || sv.denies
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
		if sv.told.IsZero() || now.Sub(sv.told) > time.Minute {
			sv.told = now
			p.shard.tell(leak.EventDenied, "", err)
		}
	}
	sv.answered(p.shard.Engine, sent)
}

// inPlace notes that a pipeline's server has carried out a request sent at this time. That
// ends the outages of other servers if this one has their keys now.
func (e *Engine) inPlace(p *pipeline, sent time.Time) {
	if e.config.Nodes == nil || e.ill.Load() == 0 {
		return
	}
	if p.after != nil {
		p.after.up(e, sent)
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
		if key != nil && address(e.config.Nodes.Known(key.Bucket)) == p.node {
			sv.up(e, sent)
		}
	}
}
