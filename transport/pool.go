package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Pool is an [http.RoundTripper] that sends each request by one of several members: the API keys,
// regions or deployments of one API. The Base of each member adds its key or chooses its host:
//
//	pool := &transport.Pool{Members: []*transport.Transport{
//		{Limiter: queue.New(bucketA, queue.Config{}), Base: withKey(keyA)},
//		{Limiter: queue.New(bucketB, queue.Config{}), Base: withKey(keyB)},
//	}}
//
// Several accounts to get around a limit may break the terms of an API. Read them before you make a
// Pool of accounts.
//
// A request goes to the member that can send it soonest, by the Explain of the member's limiter.
// With limiters that wait, such as queues, a waiting request moves if its member is held, or
// another one could send it sooner. A Pool looks for such requests each 250 ms, and immediately
// after a response from 400 on. A limiter without Explain counts as free until it refuses. With
// buckets in a store, each look at a member is a request to the store.
//
// If a member refuses a request, the next one gets it. If all refuse, the error is the one with the
// least RetryAfter. A Pool sends a request again only if a [Transport] inside a member's Base has
// refused it, so that the API has not seen it. A request whose body cannot be read again, because
// it has no GetBody, then stays with that member.
//
// A member whose API answers 401 or 403 gets no request for a minute, unless all members rest. Each
// member judges its own responses. A Transport around a Pool does not, unless its Judge is
// [JudgeAlways].
//
// The program gets a 429 of the API as the response, and only later requests use other members.
// Package retry around a Pool sends the request again after the time that the API asks for, even
// if another member is free.
//
// A Pool is safe for concurrent use. Do not change its fields once it is in use.
type Pool struct {
	// Members are what the Pool chooses from. A Pool without a member fails with
	// [outbound.ErrInvalid].
	Members []*Transport
	// Stick returns the key of a request, such as a conversation whose prompt is in a cache of the
	// API. All requests with one key go to the same member, in all processes whose Members have the
	// same order, while that can send them within Slack. Then they go to a second one, and so on. If
	// Stick is nil, or returns "", the soonest member sends the request.
	Stick func(*http.Request) string
	// Slack is the longest that a request with a key waits for the key's member. If Slack is zero, it
	// is a second.
	Slack time.Duration

	mu      sync.Mutex // protects what follows
	state   []memberState
	waiting int // requests, at all members
	chosen  uint64
	timer   *time.Timer // looks for waiting requests that are to move
	looks   sync.Mutex  // held while balance looks
}

// memberState is what a Pool knows of a member.
type memberState struct {
	waiting []*pooled     // those that ask its limiter, in their order
	chosen  uint64        // Pool.chosen when it was chosen last
	rests   time.Time     // until then
	each    time.Duration // what one more call has added to the wait, if it is known
}

const (
	poolRest  = time.Minute
	poolLook  = 250 * time.Millisecond
	poolSoon  = 5 * time.Millisecond  // the next look after a change
	poolGain  = 10 * time.Millisecond // a waiting request moves for no smaller gain
	poolGuess = time.Second           // what counts as a wait whose length is unknown
)

var errMoves = errors.New("transport: the request moves to another member")

// pooled is one request in a Pool.
type pooled struct {
	ctx    context.Context
	key    string            // of Stick, or empty
	within time.Duration     // the longest wait at the key's member
	asks   []asked           // for each member
	at     int               // the member where it waits; -1: none. The Pool's mu protects it
	cancel func(cause error) // ends the wait there
}

// asked is what a request asks a member's limiter for.
type asked struct {
	limiter outbound.Limiter // nil if the member has none
	cost    outbound.Cost
	refused error // why the member has refused the request, or nil
}

// RoundTrip sends the request by the member that can send it soonest.
func (p *Pool) RoundTrip(req *http.Request) (*http.Response, error) {
	sent := false // to a member's Base, which closes the body
	defer func() {
		if !sent {
			closeRequest(req)
		}
	}()
	outer, unsent := rowOf(req.Context(), p), true
	outer.enter()
	defer func() { outer.leave(unsent) }()
	r, err := p.pooled(req)
	if err != nil {
		return nil, err
	}
	for out := req; out != nil; {
		var permit outbound.Permit
		i, err := p.admit(r, &permit)
		switch {
		case i < 0:
			out = nil
			continue
		case err == errMoves:
			continue
		case err != nil && r.ctx.Err() != nil:
			return p.Members[i].refuse(req, err)
		case err == nil:
			sent = true
			unsent = false // unless roundTrip returns, and says otherwise
			resp, refused, failed := p.Members[i].roundTrip(out, &permit)
			if unsent = refused; failed == nil {
				if p.answered(i, resp.StatusCode); resp.Request == out {
					resp.Request = req
				}
				return resp, nil
			}
			if err = failed; !unsent || r.ctx.Err() != nil {
				return nil, err
			}
			out = readAgain(req)
		}
		r.asks[i].refused = err
	}
	if !sent {
		sent = true
		closeRequest(req)
	}
	i := r.least()
	return p.Members[i].refuse(req, r.asks[i].refused)
}

// readAgain returns the request with its body from the beginning, or nil without a GetBody.
func readAgain(req *http.Request) *http.Request {
	again := *req
	if req.Body != nil && req.Body != http.NoBody {
		if req.GetBody == nil {
			return nil
		}
		var err error
		if again.Body, err = req.GetBody(); err != nil {
			return nil
		}
	}
	return &again
}

// pooled asks the user's functions about a request.
func (p *Pool) pooled(req *http.Request) (*pooled, error) {
	if len(p.Members) == 0 || slices.Contains(p.Members, nil) {
		return nil, fmt.Errorf("transport: a Pool without a member, or with a nil one: %w", outbound.ErrInvalid)
	}
	r := &pooled{ctx: req.Context(), at: -1, asks: make([]asked, len(p.Members))}
	for i, t := range p.Members {
		if r.asks[i].limiter, _ = t.limiter(req); r.asks[i].limiter != nil {
			r.asks[i].cost = t.cost(req, ctxCostOf(r.ctx))
		}
	}
	if p.Stick != nil {
		if r.key = p.Stick(req); r.key != "" {
			r.within = cmp.Or(p.Slack, time.Second)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == nil {
		p.state = make([]memberState, len(p.Members))
		p.timer = time.AfterFunc(poolLook, p.balance)
		p.timer.Stop()
	}
	return r, nil
}

// least returns the member whose refusal has the least RetryAfter that is known.
func (r *pooled) least() int {
	best, soonest := -1, time.Duration(0)
	for i := range r.asks {
		after := time.Duration(math.MaxInt64)
		if full, ok := errors.AsType[*outbound.ThrottledError](r.asks[i].refused); ok && full.RetryAfter > 0 {
			after = full.RetryAfter
		}
		if r.asks[i].refused != nil && (best < 0 || after < soonest) {
			best, soonest = i, after
		}
	}
	return best
}

// order returns the members that may send the request: those that come first for its key, in all
// processes, or else those where the fewest wait. p.mu is held.
func (p *Pool) order(r *pooled) (order []int) {
	now, resting := time.Now(), []int(nil)
	for i := range p.state {
		if r.asks[i].refused != nil {
			continue
		}
		if p.state[i].rests.After(now) {
			resting = append(resting, i)
		} else {
			order = append(order, i)
		}
	}
	if len(resting) == len(p.state) {
		order = resting
	}
	slices.SortFunc(order, func(i, j int) int {
		if r.key != "" {
			return cmp.Compare(hashed(r.key, strconv.Itoa(i)), hashed(r.key, strconv.Itoa(j)))
		}
		a, b := &p.state[i], &p.state[j]
		return cmp.Or(cmp.Compare(len(a.waiting), len(b.waiting)), cmp.Compare(a.chosen, b.chosen))
	})
	return order
}

// admit has the soonest member's limiter admit the request. It returns the member; -1: all have
// refused the request.
func (p *Pool) admit(r *pooled, permit *outbound.Permit) (int, error) {
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer cancel(nil)
	r.cancel = cancel
	p.mu.Lock()
	order := p.order(r)
	if len(order) == 0 {
		p.mu.Unlock()
		return -1, nil
	}
	p.join(r, order[0]) // so that simultaneous requests choose different members
	p.mu.Unlock()
	defer p.leave(r)
	i, _ := p.soonest(ctx, r, order, true)
	if r.asks[i].limiter == nil {
		return i, nil
	}
	err := permit.AcquireIn(ctx, r.asks[i].limiter, r.asks[i].cost)
	if err != nil && context.Cause(ctx) == errMoves {
		err = errMoves
	}
	return i, err
}

// join notes that a request waits at a member. p.mu is held.
func (p *Pool) join(r *pooled, i int) {
	if p.waiting++; p.waiting == 1 {
		p.timer.Reset(poolLook)
	}
	p.chosen++
	r.at, p.state[i].chosen = i, p.chosen
	p.state[i].waiting = append(p.state[i].waiting, r)
}

// part notes that a request waits no longer where it does. p.mu is held.
func (p *Pool) part(r *pooled) {
	m := &p.state[r.at]
	at := slices.Index(m.waiting, r)
	m.waiting = slices.Delete(m.waiting, at, at+1)
	r.at = -1
	switch p.waiting--; {
	case p.waiting == 0:
		p.timer.Stop()
	case len(m.waiting) == 0: // the member could serve those that wait elsewhere
		p.timer.Reset(poolSoon)
	}
}

// leave ends the wait of a request that has not moved.
func (p *Pool) leave(r *pooled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.at >= 0 {
		p.part(r)
	}
}

// soonest returns the first of some members that can send the request within r.within, or else the
// one that can send it soonest, and when. If joins is set, the request then waits there.
func (p *Pool) soonest(ctx context.Context, r *pooled, order []int, joins bool) (best int, when time.Duration) {
	waits := make([]wait, 0, len(order))
	for _, i := range order {
		w := r.wait(ctx, i)
		waits = append(waits, w)
		p.mu.Lock()
		at := p.when(r, &w)
		p.mu.Unlock()
		if at <= r.within {
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := range waits { // again, because other requests have chosen meanwhile
		at := p.when(r, &waits[n])
		if n == 0 || at < when {
			best, when = waits[n].member, at
		}
		if at <= r.within {
			break
		}
	}
	if joins && r.at >= 0 && r.at != best {
		p.part(r)
		p.join(r, best)
	}
	return best, when
}

// when returns how long the request would wait behind those that are on their way into the member's
// line. p.mu is held.
func (p *Pool) when(r *pooled, w *wait) time.Duration {
	m := &p.state[w.member]
	coming := len(m.waiting) - w.ahead
	if r.at == w.member {
		coming--
	}
	m.each = cmp.Or(w.each, m.each)
	return w.total + cmp.Or(m.each, poolGuess)*time.Duration(max(0, coming))
}

// wait is how long a call would wait at a member.
type wait struct {
	member            int
	total, held, each time.Duration // each is what one more call adds
	ahead             int           // calls that wait there
}

// wait asks a member's limiter.
func (r *pooled) wait(ctx context.Context, i int) wait {
	x, ok := outbound.As[interface {
		Explain(context.Context, outbound.Cost) (outbound.Explanation, error)
	}](r.asks[i].limiter)
	if !ok {
		return wait{member: i}
	}
	e, err := x.Explain(ctx, r.asks[i].cost)
	if err != nil { // Acquire says it
		return wait{member: i}
	}
	if e.Wait < 0 {
		e.Wait = poolGuess
	}
	w, least := wait{member: i, total: e.Wait, ahead: e.Ahead}, time.Duration(0)
	for k := range e.States {
		l := &e.States[k]
		w.held = max(w.held, l.HeldFor)
		if n := r.asks[i].cost[l.Limit.Unit]; n > 0 && l.Limit.LeakRate > 0 {
			least = max(least, time.Duration(n/l.Limit.LeakRate*float64(time.Second)))
		}
	}
	// While the queue asks its bucket, its answer is a lower bound.
	w.total = max(w.total, w.held+least*time.Duration(w.ahead))
	w.each = max(least, (w.total-w.held)/time.Duration(w.ahead+1))
	return w
}

// answered notes the status of a member's response.
func (p *Pool) answered(i, status int) {
	if status < 400 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if status == http.StatusUnauthorized || status == http.StatusForbidden {
		p.state[i].rests = time.Now().Add(poolRest)
	}
	if p.waiting > 0 {
		p.timer.Reset(poolSoon)
	}
}

// balance moves requests that wait at a member to another one that can send them sooner.
func (p *Pool) balance() {
	if !p.looks.TryLock() {
		return // the one that runs sets the timer
	}
	defer p.looks.Unlock()
	next := poolLook
	for i := range p.Members {
		if p.move(i) {
			next = poolSoon // the requests that have moved have changed the waits
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting > 0 {
		p.timer.Reset(next)
	}
}

// move has a member's last requests choose again, if another member is better for them. It reports
// whether one is.
func (p *Pool) move(i int) bool {
	p.mu.Lock()
	n := len(p.state[i].waiting)
	if n == 0 {
		p.mu.Unlock()
		return false
	}
	last := p.state[i].waiting[n-1]
	order := p.order(last)
	p.mu.Unlock()
	rests := !slices.Contains(order, i)
	w := last.wait(context.Background(), i)
	stays := w.total - w.each // its own call is among those ahead
	if !rests && stays <= last.within {
		return false
	}
	order = slices.DeleteFunc(order, func(j int) bool { return j == i })
	if len(order) == 0 {
		return false
	}
	if _, when := p.soonest(context.Background(), last, order, false); !rests && when+poolGain > stays {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for range 1 + n/16 {
		all := p.state[i].waiting
		if len(all) == 0 {
			break
		}
		all[len(all)-1].cancel(errMoves)
		p.part(all[len(all)-1])
	}
	return true
}
