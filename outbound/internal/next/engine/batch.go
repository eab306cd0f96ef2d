package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// batch is a set of trips that go together. The pipeline tries them until each has an answer or the
// time is up. A trip without an answer goes again with the same number, and the store answers that
// number from its record. So the batch can give up an attempt and make another one, whatever has
// become of the first.
type batch struct {
	pipe     *pipeline
	trips    []*Trip
	deadline time.Time
	began    time.Time
	apart    bool // it goes next to the pipeline's other batches: see Key.Apart

	// The shard's lock protects these fields.
	timer *time.Timer
	left  int       // trips without an answer
	over  bool      // every trip has its answer, or the time is up
	last  error     // why there was no answer
	asked time.Time // when the latest attempt began, unless it has brought a reason since
}

const (
	// attemptsAtOnce is the largest number of attempts of a pipeline: a client that hangs does not
	// hang with all its connections.
	attemptsAtOnce = 4
	retryPause     = 5 * time.Millisecond
	maxRetryPause  = 100 * time.Millisecond
)

// batch returns a batch that begins now. The shard's lock is held.
func (p *pipeline) batch(trips []*Trip, apart bool) *batch {
	now := time.Now()
	b := &batch{pipe: p, trips: trips, began: now, deadline: now.Add(p.shard.config.forTrips()), apart: apart, left: len(trips)}
	for _, t := range trips {
		t.batch = b
		if t.began.IsZero() {
			t.began = now
		}
		if apart { // its callers wait since then
			b.deadline = t.began.Add(p.shard.config.forTrips())
		}
	}
	b.timer = time.AfterFunc(b.patience(), b.late)
	return b
}

// patience is how long an attempt may take before the batch begins another one next to it.
func (b *batch) patience() time.Duration {
	if b.apart {
		return time.Until(b.deadline)
	}
	return max(1, b.pipe.shard.config.Timeout/4)
}

// attempt sends the trips without an answer, again and again, until all have one. work wakes a
// caller that can wait for more work; it is nil if the caller cannot wait.
func (b *batch) attempt(work chan struct{}) successor {
	pause := retryPause
	for {
		todo := b.begin()
		if todo == nil {
			return handedOver
		}
		ctx, cancel := context.WithDeadline(context.Background(), b.deadline)
		sent := time.Now()
		b.pipe.shard.config.Carrier.Send(ctx, todo)
		arrived := time.Now()
		cancel()
		next, calm := b.take(todo, work, sent, arrived)
		if next != handedOver {
			return next
		}
		if calm {
			time.Sleep(pause/2 + rand.N(pause))
			pause = min(2*pause, maxRetryPause)
		}
	}
}

// begin returns the attempts to send, if there are any.
func (b *batch) begin() (todo []Attempt) {
	sh := b.pipe.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if b.over {
		return nil
	}
	b.count(1)
	b.asked = time.Now()
	todo = make([]Attempt, 0, b.left)
	for _, t := range b.trips {
		if t.done {
			continue
		}
		if t.sends++; t.sends > 1 {
			sh.counts.repeats++
		}
		buffer := sh.buffer()
		todo = append(todo, Attempt{Trip: t, Into: (*buffer)[:0], buffer: buffer})
	}
	return todo
}

// count notes that an attempt begins, by 1, or has ended, by -1.
func (b *batch) count(by int) {
	if b.apart {
		return
	}
	if b.pipe.out += by; by > 0 {
		b.pipe.began = time.Now()
	}
}

// buffer returns memory for charges.
func (e *Engine) buffer() *[]store.Charge {
	if b, _ := e.buffers.Get().(*[]store.Charge); b != nil {
		return b
	}
	return new([]store.Charge)
}

// take hands the answers to the callers. If these were the last ones, it reports which goroutine
// sends the next batch. calm says that it is better to wait before asking for the rest again.
func (b *batch) take(todo []Attempt, work chan struct{}, sent, arrived time.Time) (next successor, calm bool) {
	p := b.pipe
	sh := p.shard
	out := make([]outcome, 0, len(todo))
	defer func() {
		sh.hand(out)
		for i := range todo { // the callers have copies of the charges
			sh.buffers.Put(todo[i].buffer)
		}
	}()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	b.count(-1)
	failed := false
	var up *pipeline // of the node that the latest answer came from
	for i := range todo {
		a := &todo[i]
		if a.done {
			// An attempt at a trip that left no record, or has failed, may be carried out later.
			if late := a.Reply.Charges; a.Err == nil && len(late) > a.booked {
				sh.pushBack(a.Trip, slices.Clone(late))
				a.booked = len(late) // another attempt may bring the same
			}
			continue
		}
		if cap(a.Reply.Charges) > cap(*a.buffer) {
			*a.buffer = a.Reply.Charges
		}
		v := sh.config.Carrier.Take(a)
		if a.Arrived.IsZero() {
			a.Arrived = arrived
		}
		mine := a.batch == b // else the trip goes on in another batch, which repeats it
		switch v {
		case Done:
			if up == nil || sh.ill.Load() > 0 { // else no node is down
				if by := sh.home(a.queue, p); by != up {
					up = by
					by.up(sent)
					sh.inPlace(by, sent)
				}
			}
			a.ended(b)
			sh.counts.trip(a.Arrived.Sub(a.began))
			out = append(out, sh.deliver(a, sent))
		case Again:
		case Later, Elsewhere:
			failed = true
			if b.failed(a); !mine || b.over {
				break
			}
			apart := a.Key.Apart && !b.apart
			switch moved := v == Elsewhere || !p.known(a.Key); {
			case !apart && !moved:
				calm = true
			case arrived.After(a.began.Add(sh.config.forTrips())):
				out = append(out, b.expire(a.Trip, sh.config.Carrier.Unavailable(b.cause())))
			case apart:
				sh.requeue(a.Trip, 0)
			default:
				a.pauses = min(max(2*a.pauses, retryPause), maxRetryPause)
				sh.requeue(a.Trip, a.pauses/2+rand.N(a.pauses))
			}
		default:
			if a.ended(b); v != Unasked && !a.Unasked {
				sh.counts.trip(a.Arrived.Sub(a.began))
				a.queue.cause = nil
				if p.known(a.Key) {
					p.refused(a.Key, v, a.Err, sent)
				}
			}
			if a.Now != 0 {
				a.queue.offset.lay(a.Now, a.Now, sent, arrived)
			}
			out = append(out, sh.giveUp(v, a))
		}
	}
	if failed {
		sh.refresh()
	}
	if b.over || b.left > 0 {
		return handedOver, calm && !b.over
	}
	return b.finish(work), false
}

// finish ends a batch of which each trip has its answer or goes on elsewhere. It returns which
// goroutine sends the next batch.
func (b *batch) finish(work chan struct{}) successor {
	b.over = true
	b.timer.Stop()
	if b.apart {
		return pause
	}
	return b.pipe.end(work)
}

// ended notes that a trip has its answer, which an attempt of the batch by has brought. The trip may
// have gone on in another batch since.
func (t *Trip) ended(by *batch) {
	t.done = true
	of := t.batch
	if of == nil {
		return
	}
	if of.left--; of != by && of.left == 0 && of.finish(nil) == goOn {
		go of.pipe.run()
	}
}

// expire ends a trip that has no answer although its time is up.
func (b *batch) expire(t *Trip, err error) outcome {
	t.done, t.queue.fence, t.queue.Apart = true, true, false
	b.left--
	t.queue.pipe = b.pipe.shard.pipe("")
	return b.pipe.shard.refuse(t, err)
}

// giveUp ends a trip whose attempt was not Done, and need not be made again. An attempt before, or
// next to it, may still arrive.
func (sh *shard) giveUp(v Verdict, a *Attempt) outcome {
	a.queue.fence = a.queue.fence || a.Fence || a.sends > 1
	if a.Reply.Corrupt {
		sh.report(store.EventCorrupt, a.queue.Bucket, nil)
	}
	if v == Anew {
		return sh.anew(a)
	}
	return sh.refuse(a.Trip, a.Err)
}

// late is called when an attempt takes too long. It begins another attempt, or gives the batch up.
func (b *batch) late() {
	p := b.pipe
	sh := p.shard
	sh.mu.Lock()
	if b.over {
		sh.mu.Unlock()
		return
	}
	now := time.Now()
	if now.Before(b.deadline) {
		for i := len(b.trips) - 1; i >= 0; i-- { // the others do not wait for the node that has it by now
			if t := b.trips[i]; !t.done && !p.known(t.Key) {
				sh.requeue(t, 0)
			}
		}
		another := p.out < attemptsAtOnce
		next := handedOver
		if b.left == 0 {
			next, another = b.finish(nil), false
		} else {
			b.timer.Reset(min(b.patience(), b.deadline.Sub(now)))
		}
		sh.mu.Unlock()
		sh.refresh()
		if another {
			next = b.attempt(nil)
		}
		if next == goOn {
			p.run()
		}
		return
	}
	b.over = true
	err := sh.config.Carrier.Unavailable(b.cause())
	var out []outcome
	for _, t := range b.trips {
		if t.done {
			continue
		}
		if !b.apart {
			sh.fail(t.queue, err)
		}
		out = append(out, b.expire(t, err))
	}
	if !b.apart { // else a key was locked: if the server is down, its next trip finds that out
		p.busy = false
		out = append(out, p.down(err, b.began, now)...)
		sh.leave(p)
	}
	sh.mu.Unlock()
	sh.hand(out)
}

// failed keeps the reason why an attempt has no answer, for the batch and for the key, whose
// callers' time may be up before the batch's. An error that only says that the time is up does not
// replace a reason that came before.
func (b *batch) failed(a *Attempt) {
	if errors.Is(a.Err, context.DeadlineExceeded) || errors.Is(a.Err, context.Canceled) {
		return
	}
	b.last, b.asked = a.Err, time.Time{}
	a.queue.cause, a.queue.caused = b.pipe.shard.config.Carrier.Unavailable(a.Err), time.Now()
}

// cause returns the reason why there was no answer. A server that has fallen silent since an answer
// is silent.
func (b *batch) cause() error {
	sh := b.pipe.shard
	if b.last == nil || !b.asked.IsZero() && time.Since(b.asked) >= sh.config.Timeout/4 {
		return sh.config.silent()
	}
	return b.last
}
