package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// batch is a set of trips that go together. The pipeline tries them until each has an answer
// or the time is up. A trip without an answer goes once more with the same number, and the
// store answers that number from its record. So the batch can give up an attempt and make
// another one, whatever has become of the first.
type batch struct {
	pipe     *pipeline
	trips    []*Trip
	began    time.Time
	deadline time.Time
	apart    bool // it goes beside the pipeline's other batches: see Key.Apart
	parted   bool // it went with others before

	// The shard's lock protects these fields.
	timer *time.Timer
	left  int       // trips without an answer
	out   int       // attempts that the carrier is busy with; of a batch that goes apart
	aside bool      // another node is asked as well
	over  bool      // every trip has its answer, or the time is up
	last  error     // why there was no answer
	asked time.Time // when the latest attempt began, unless it has brought a reason since; of a batch that goes apart
}

const (
	attemptsAtOnce = 4 // attempts of one pipeline: a client that hangs does not hang with all its connections
	retryPause     = 5 * time.Millisecond
	maxRetryPause  = 100 * time.Millisecond
)

// batch returns a batch that begins now.
func (p *pipeline) batch(trips []*Trip, apart bool) *batch {
	now := time.Now()
	return &batch{pipe: p, trips: trips, began: now, deadline: now.Add(p.shard.config.forTrips()), apart: apart, left: len(trips)}
}

// patience is how long an attempt may take before the batch begins another one beside it.
func (b *batch) patience() time.Duration {
	if b.apart {
		return b.pipe.shard.config.forTrips()
	}
	return max(1, b.pipe.shard.config.Timeout/4)
}

// carryOut sends the batch. work wakes a caller that can wait for more work; it is nil if
// the caller cannot wait.
func (b *batch) carryOut(work chan struct{}) successor {
	p := b.pipe
	p.shard.mu.Lock() // it may be late at once
	in := b.patience()
	if p.cause != nil && !b.apart && p.other() != nil {
		in = 0 // the node is known to hang, and another may have been promoted
	}
	b.timer = time.AfterFunc(in, b.late)
	p.shard.mu.Unlock()
	return b.attempt(work, false)
}

// part takes a trip out of the batch, which goes on apart from then on, because its key alone is not to be
// had. Attempts that the batch has made at it may still be under way.
func (b *batch) part(t *Trip) *batch {
	b.trips = slices.DeleteFunc(b.trips, func(u *Trip) bool { return u == t })
	b.left--
	t.batch = &batch{pipe: b.pipe, trips: []*Trip{t}, began: b.began, deadline: b.deadline, apart: true, parted: true, left: 1}
	return t.batch
}

// resume sends a batch that was parted. over is called with the shard's lock held once no attempt hangs; it may be nil.
func (b *batch) resume(over func()) {
	b.timer = time.AfterFunc(time.Until(b.deadline), b.late)
	go func() {
		time.Sleep(retryPause/2 + rand.N(retryPause))
		b.attempt(nil, false)
		if over != nil {
			b.pipe.shard.mu.Lock()
			defer b.pipe.shard.mu.Unlock()
			over()
		}
	}()
}

// attempt sends the trips without an answer, again and again, until all have one. With aside
// it asks another node, if there is one that may have the keys by now.
func (b *batch) attempt(work chan struct{}, aside bool) successor {
	pause := retryPause
	for {
		todo, to := b.begin(aside)
		if todo == nil {
			return handedOver
		}
		ctx, cancel := context.WithDeadline(context.Background(), b.deadline)
		sent := time.Now()
		b.pipe.shard.config.Carrier.Send(ctx, to.node, todo)
		arrived := time.Now()
		cancel()
		next, calm := b.take(todo, to, work, sent, arrived)
		if next != handedOver {
			return next
		}
		if calm {
			time.Sleep(pause/2 + rand.N(pause))
			pause = min(2*pause, maxRetryPause)
		}
	}
}

// begin returns the attempts to send, if there are any, and the node to ask.
func (b *batch) begin(aside bool) (todo []Attempt, to recipient) {
	p := b.pipe
	sh := p.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if b.over {
		return nil, to
	}
	if !b.apart { // else its key may have another node than the pipeline's others
		to = p.recipient(aside)
	}
	if to.aside {
		b.aside = true
	} else if aside && p.out >= attemptsAtOnce {
		return nil, to // enough attempts hang already
	}
	if b.asked = time.Now(); b.apart {
		b.out++
	} else {
		p.count(to, 1)
	}
	todo = make([]Attempt, 0, b.left)
	for _, t := range b.trips {
		if !t.done {
			if t.sent {
				sh.counts.repeats++
			}
			t.sent = true
			buffer := sh.buffer()
			todo = append(todo, Attempt{Trip: t, Alone: t.alone, Aside: to.aside, Into: (*buffer)[:0], buffer: buffer})
		}
	}
	return todo, to
}

// buffer returns memory for charges.
func (e *Engine) buffer() *[]leak.Charge {
	if b, _ := e.buffers.Get().(*[]leak.Charge); b != nil {
		return b
	}
	return new([]leak.Charge)
}

// take hands the answers to the callers. If these were the last ones, it reports which
// goroutine sends the next batch. calm says that it is better to wait before asking for the
// rest again.
func (b *batch) take(todo []Attempt, to recipient, work chan struct{}, sent, arrived time.Time) (next successor, calm bool) {
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
	if b.apart {
		b.out--
	} else {
		p.count(to, -1)
	}
	failed, answered, moved := false, false, false
	var up *pipeline // of the node that the latest answer came from
	for i := range todo {
		a := &todo[i]
		if a.done {
			continue
		}
		if cap(a.Reply.Charges) > cap(*a.buffer) {
			*a.buffer = a.Reply.Charges
		}
		of := b
		if a.batch != nil {
			of = a.batch
		}
		v := sh.config.Carrier.Take(a)
		if a.Arrived.IsZero() {
			a.Arrived = arrived
		}
		switch {
		case v == Done:
			if to.aside && !answered {
				sh.replace(p, to.node)
			}
			if up != p || sh.ill.Load() > 0 { // else no other node is away
				if by := b.answerer(a, to); by != nil && by != up {
					up = by
					by.up(sent)
					sh.inPlace(by, sent)
				}
			}
			answered = true
			if of.ended(a.Trip); a.alone || of.parted {
				sh.find(a.queue)
			}
			sh.counts.trip(a.Arrived.Sub(b.began))
			out = append(out, sh.deliver(a, sent))
		case v == Again:
		case to.aside: // the node has not been promoted
			p.seek(b)
			failed, calm = true, true
		case to.node != nil && (v == Elsewhere || v == Unasked): // the node is no longer a master
			p.direct, p.after, failed, calm = nil, nil, true, true
			b.failed(a)
		case v == Elsewhere:
			a.alone, failed, calm, moved = true, true, true, true
			of.failed(a)
		case v == Later && a.Key.Apart && !of.apart:
			c := b.part(a.Trip)
			c.failed(a)
			c.resume(nil)
		case v == Later:
			failed, calm = true, true
			of.failed(a)
		default:
			asked := v != Unasked && !a.Unasked
			if of.ended(a.Trip); asked {
				sh.counts.trip(a.Arrived.Sub(b.began))
				if by := b.answerer(a, to); by != nil {
					by.refused(a.Key, v, a.Err, sent)
				}
			}
			if a.Now != 0 {
				a.queue.offset.lay(a.Now, a.Now, sent, arrived)
			}
			out = append(out, of.giveUp(v, a))
		}
	}
	if failed && (answered || moved) && !b.over { // the node answers
		if strays := b.strays(); answered || len(strays) == b.left {
			for _, t := range b.partStrays(strays) {
				if t.queue.astray.cause != nil { // else the batch would hang with it
					out = append(out, b.part(t).giveUpApart(arrived))
				}
			}
		}
	}
	if failed {
		sh.refresh()
	}
	if b.over || b.left > 0 {
		return handedOver, calm && !b.over
	}
	b.over = true
	b.timer.Stop()
	if b.apart {
		return pause, false
	}
	return p.end(work), false
}

// ended notes that a trip of the batch has its answer. An attempt from before the batch went apart may have
// brought it: then nobody else ends the batch.
func (b *batch) ended(t *Trip) {
	t.done = true
	if b.left--; b.parted {
		b.over = true
		b.timer.Stop()
	}
}

// giveUp ends a trip whose attempt was not Done, and need not be made again.
func (b *batch) giveUp(v Verdict, a *Attempt) outcome {
	q, sh := a.queue, b.pipe.shard
	hangs := b.out > 0 || (!b.apart || b.parted) && b.pipe.out+b.pipe.aside > 0 // and may still arrive
	q.fence = q.fence || a.Fence || hangs
	sh.tellOf(a)
	if v != Unasked && !a.Unasked {
		sh.heard(q)
	}
	if v == Anew {
		return sh.anew(a)
	}
	return sh.refuse(a.Trip, a.Err)
}

// late is called when an attempt takes too long. It begins another attempt, or gives the
// batch up.
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
		p.chooseKey()
		var out []outcome
		for _, t := range b.partStrays(b.strays()) { // too many hang
			out = append(out, b.part(t).giveUpApart(now))
		}
		if b.left == 0 {
			b.over = true
			sh.mu.Unlock()
			sh.hand(out)
			sh.refresh()
			p.run()
			return
		}
		p.seek(b)
		aside := !b.aside && p.other() != nil
		another := aside || p.out < attemptsAtOnce
		b.timer.Reset(min(b.patience(), b.deadline.Sub(now)))
		sh.mu.Unlock()
		sh.hand(out)
		sh.refresh()
		if another && b.attempt(nil, aside) != handedOver {
			p.run()
		}
		return
	}
	b.over = true
	if b.apart {
		out := b.giveUpApart(now)
		sh.mu.Unlock()
		out.hand(sh)
		return
	}
	err := sh.config.Carrier.Away(b.cause())
	var out []outcome
	for _, t := range b.trips {
		if !t.done {
			t.done = true
			t.queue.fence = true
			out = append(out, sh.refuse(t, err))
			sh.fail(t.queue, err)
		}
	}
	p.busy = false
	p.down(err, b.began, now)
	sh.leave(p)
	sh.mu.Unlock()
	sh.hand(out)
}

// giveUpApart ends the trip of a batch that goes apart. A key that is locked is no outage. If the server is away,
// the key's next trip finds that out: it goes with the others. Only where that would go to a node which sends it
// elsewhere, the key has an outage of its own.
func (b *batch) giveUpApart(now time.Time) outcome {
	b.over = true
	sh, t := b.pipe.shard, b.trips[0]
	q := t.queue
	if b.parted && !b.asked.IsZero() && now.Sub(b.asked) >= sh.config.Timeout/4 {
		b.last = nil // the server has fallen silent since
	}
	early := now.Before(b.deadline) // too many other trips hang, and nobody has asked this one's node
	err := sh.config.Carrier.Away(b.cause())
	if own := sh.reason(q, now); own != nil && (b.last != nil || early) {
		err = own
	}
	t.done, q.fence, q.Apart = true, true, false
	if t.alone && b.pipe.known(&q.Key) && (!early || q.astray.cause != nil) {
		sh.astray(q, err, now)
	}
	sh.find(q)
	return sh.refuse(t, err)
}

// failed keeps the reason why an attempt has no answer, for the batch and for the key, whose callers' time may be
// up before the batch's. An error that only says that the time is up does not replace a reason that came before.
func (b *batch) failed(a *Attempt) {
	if errors.Is(a.Err, context.DeadlineExceeded) || errors.Is(a.Err, context.Canceled) {
		return
	}
	b.last, b.asked = a.Err, time.Time{}
	a.queue.cause, a.queue.caused = b.pipe.shard.config.Carrier.Away(a.Err), time.Now()
}

// cause returns the reason why there was no answer.
func (b *batch) cause() error {
	if b.last == nil {
		return b.pipe.shard.config.silent()
	}
	return b.last
}
