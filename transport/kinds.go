package transport

import (
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/transport/profile"
)

// kinds recognizes buckets among policies that look like windows, by two responses. More remains
// before a reset has passed, and the resets are in proportion to what is used.
type kinds struct {
	mu  sync.Mutex // protects what follows
	all []seen     // at most maxKinds
}

const maxKinds = 16

// seen is what the last response reported of a policy.
type seen struct {
	name        string
	limit, used float64
	reset       time.Duration
	date        time.Time
	bucket      bool
}

// learn gives the policies of a signal their kinds, and the signal the wait that follows.
func (t *Transport) learn(s *profile.Signal) {
	policies, wait, found := s.Policies(), time.Duration(0), false
	for i := range policies {
		p := &policies[i]
		if p.Kind == profile.Window && p.Remaining >= 0 && p.Limit > p.Remaining && p.Reset > 0 && t.known().bucket(p, s.Date) {
			p.Kind, found = profile.Bucket, true
		}
		if p.Remaining == 0 && (s.Throttled || p.Kind == profile.Window) {
			wait = max(wait, p.Wait())
		}
	}
	if found && (!s.Throttled || s.RetryAfter == 0 && s.Reason < profile.Concurrency) {
		s.Wait = wait
	}
}

// known returns the transport's memory.
func (t *Transport) known() *kinds {
	k, ok := t.kinds.Load().(*kinds)
	if !ok {
		t.kinds.CompareAndSwap(nil, new(kinds))
		k = t.kinds.Load().(*kinds)
	}
	return k
}

// bucket reports whether a policy is known to be a bucket. Only responses with
// different dates count, because those of one second may have changed their order.
func (k *kinds) bucket(p *profile.Policy, date time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := seen{p.Name, p.Limit, p.Limit - p.Remaining, p.Reset, date, false}
	for i := range k.all {
		b := &k.all[i]
		if b.name != now.name || b.limit != now.limit {
			continue
		}
		if b.bucket || !date.After(b.date) {
			return b.bucket
		}
		off := now.reset.Seconds() - b.reset.Seconds()*now.used/b.used
		now.bucket = now.used < b.used && date.Add(2*time.Second).Before(b.date.Add(b.reset)) && -2 <= off && off <= 2
		*b = now
		return b.bucket
	}
	if !date.IsZero() && len(k.all) < maxKinds {
		k.all = append(k.all, now)
	}
	return false
}
