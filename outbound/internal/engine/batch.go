package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// batch is a set of trips that go together, in one Send. A trip that comes back without an answer
// goes again in another batch with the same number, and the store answers that number from its
// record. So the engine can give up an attempt and make another one, whatever has become of the
// first. The shard's lock protects the fields.
type batch struct {
	pipe  *pipeline
	trips []*Trip
	until time.Time // when Send has to return
	apart bool      // it goes next to the pipeline's other batches: see Key.Apart
	over  bool      // the pipeline does not wait for it
	left  int       // trips that wait for it
	timer *time.Timer
	one   [1]*Trip // memory for a single trip
}

const (
	// attemptsAtOnce is the largest number of Sends of a pipeline: a client that hangs does not hang
	// with all its connections.
	attemptsAtOnce = 4
	retryPause     = 5 * time.Millisecond
	maxRetryPause  = 100 * time.Millisecond
)

// add adds a trip to a batch that has not begun.
func (b *batch) add(t *Trip) {
	b.trips = append(b.trips, t)
	t.batch = b
	if t.sends++; t.sends > 1 {
		b.pipe.shard.counts.repeats++
	}
	if t.until.After(b.until) {
		b.until = t.until
	}
}

// begin begins a batch.
func (b *batch) begin(now time.Time) {
	b.left = len(b.trips)
	b.timer = time.AfterFunc(b.patience(now), b.late)
}

// patience is how long the trips wait for the batch: until another one takes them, or until the time
// of one is up.
func (b *batch) patience(now time.Time) time.Duration {
	d := b.until.Sub(now)
	if b.apart {
		return d
	}
	for _, t := range b.trips {
		if t.batch == b {
			d = min(d, t.until.Sub(now))
		}
	}
	return min(d, max(1, b.pipe.shard.config.Timeout/4))
}

// leave takes a trip out of its batch.
func (t *Trip) leave() {
	b := t.batch
	if b == nil {
		return
	}
	t.batch = nil
	if b.left--; b.left == 0 && !b.over {
		b.over = true
		b.timer.Stop()
		b.pipe.busy = false
		b.pipe.begin()
	}
}

// run sends the batch of a key that is Apart.
func (b *batch) run() { b.send() }

// send makes the attempts. It reports whether the pipeline has waited for them.
func (b *batch) send() bool {
	sh := b.pipe.shard
	todo := make([]Attempt, len(b.trips))
	for i, t := range b.trips {
		buffer := sh.buffer()
		todo[i] = Attempt{Trip: t, Into: (*buffer)[:0], buffer: buffer}
	}
	ctx, cancel := context.WithDeadline(context.Background(), b.until)
	sent := time.Now()
	sh.config.Carrier.Send(ctx, todo)
	arrived := time.Now()
	cancel()
	sh.mu.Lock()
	waited := !b.over
	b.over = true
	b.timer.Stop()
	if !b.apart {
		b.pipe.out--
	}
	b.take(todo, sent, arrived)
	sh.unlock()
	for i := range todo { // the callers have copies of the charges
		sh.buffers.Put(todo[i].buffer)
	}
	return waited
}

// buffer returns memory for charges.
func (e *Engine) buffer() *[]store.Charge {
	if b, _ := e.buffers.Get().(*[]store.Charge); b != nil {
		return b
	}
	return new([]store.Charge)
}

// take looks at the outcomes of attempts. Trips without an answer go again after a pause, each to the
// node that has its key by then.
func (b *batch) take(todo []Attempt, sent, arrived time.Time) {
	p := b.pipe
	sh := p.shard
	var again []*Trip
	for i := range todo {
		a := &todo[i]
		t, q := a.Trip, a.queue
		if q.trip != t {
			// An attempt at a trip that left no record, or has failed, may be carried out later.
			if late := a.Reply.Charges; a.Err == nil && len(late) > t.booked {
				sh.pushBack(t, slices.Clone(late))
				t.booked = len(late) // another attempt may bring the same
			}
			continue
		}
		v := sh.config.Carrier.Take(a)
		if a.Skew != nil {
			sh.report(store.EventSkew, "", a.Skew)
		}
		if cap(a.Reply.Charges) > cap(*a.buffer) {
			*a.buffer = a.Reply.Charges
		}
		if a.Arrived.IsZero() {
			a.Arrived = arrived
		}
		switch v {
		case Done:
			sh.counts.trips.Add(a.Arrived.Sub(t.began))
			sh.answered(q, v, nil, sent)
			sh.deliver(a, sent)
		case Again, Later, Elsewhere:
			if v != Again {
				sh.failed(a, arrived)
			}
			switch {
			case t.batch != b: // it goes on in another one
			case !arrived.Before(t.until):
				p.expire(t, arrived)
			case v == Again:
				t.leave()
				sh.push(q)
			default:
				t.leave()
				again = append(again, t)
			}
		default:
			if v != Unasked && !a.Unasked {
				sh.counts.trips.Add(a.Arrived.Sub(t.began))
				if v != Requeue || !t.unserved { // else the server answers, but may only read
					q.cause = nil
					proof := sent
					if v == Requeue { // what the carrier knows of the key may be from before an outage; a second time it is newer
						proof, q.requeued = q.requeued, sent
					}
					if sh.pipe(q) == p {
						sh.answered(q, v, a.Err, proof)
					}
				}
			}
			if a.Now != 0 {
				q.offset.lay(a.Now, a.Now, sent, arrived)
			}
			sh.giveUp(v, a)
		}
	}
	if len(again) > 0 {
		sh.retry(again, arrived)
	}
}

// retry sends trips again after a pause. So no other key waits for them.
func (sh *shard) retry(trips []*Trip, now time.Time) {
	pause := min(retryPause<<min(trips[0].sends-1, 10), maxRetryPause)
	pause = pause/2 + rand.N(pause)
	for _, t := range trips {
		pause = min(pause, t.until.Sub(now))
	}
	time.AfterFunc(pause, func() {
		sh.mu.Lock()
		defer sh.unlock()
		for _, t := range trips {
			if t.queue.trip == t {
				sh.push(t.queue)
			}
		}
	})
}

// failed keeps the reason why an attempt has no answer. An error that only says that the time is up
// does not replace a reason that came before.
func (sh *shard) failed(a *Attempt, now time.Time) {
	sh.refresh()
	if !errors.Is(a.Err, context.DeadlineExceeded) && !errors.Is(a.Err, context.Canceled) {
		a.queue.cause, a.queue.caused = sh.config.Carrier.Unavailable(a.Err), now
		a.unserved = errors.Is(a.queue.cause, store.ErrUnavailable)
	}
}

// late is called when a batch takes too long. Another one takes its trips, or their time is up.
func (b *batch) late() {
	p := b.pipe
	sh := p.shard
	sh.mu.Lock()
	defer sh.unlock()
	now := time.Now()
	for _, t := range b.trips {
		switch {
		case t.batch != b:
		case !now.Before(t.until):
			p.expire(t, now)
		case !b.apart && (p.out < attemptsAtOnce || sh.pipe(t.queue) != p):
			t.leave()
			sh.push(t.queue)
		}
	}
	sh.refresh()
	if b.left > 0 {
		b.timer.Reset(b.patience(now))
	}
}

// expire ends a trip that has no answer although its time is up. Then its server is down, unless the
// key is Apart: it was locked, and if the server is down, the key's next trip finds that out.
func (p *pipeline) expire(t *Trip, now time.Time) {
	sh, q := p.shard, t.queue
	err := sh.why(q, now, 1)
	if q.Apart {
		q.Apart, q.fence = false, true
		sh.refuse(t, err)
		return
	}
	sh.failAll(q, err)
	if !sh.down(p.server, t, err, now) {
		return
	}
	for _, q := range p.ready {
		q.queued = false
		sh.failAll(q, err)
	}
	p.ready = nil
}

// refresh makes the carrier look for the nodes again. Without it, a client continues for long with
// a node that has died.
func (e *Engine) refresh() {
	if e.config.Nodes != nil {
		e.config.Nodes.Refresh()
	}
}
