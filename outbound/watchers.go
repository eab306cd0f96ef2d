package outbound

import "context"

// OnChange has f called, soon, in any goroutine and with no lock held,
// whenever something in this process has changed what those who wait for the
// bucket have planned: a Hold, Resume, SetLimits, a call at once that ended, or
// units that came back. It is for packages that wait, as [Bucket.Book] is. f
// must not block: the call that has changed something may return only after f, and its
// caller may hold locks. stop ends it.
func (b *Bucket) OnChange(f func()) (stop func()) {
	if b.unmade() {
		return func() {}
	}
	l := b.ledger()
	l.watchMu.Lock()
	defer l.watchMu.Unlock()
	if l.watchers == nil {
		l.watchers = make(map[*func()]struct{})
	}
	l.watchers[&f] = struct{}{}
	return func() {
		l.watchMu.Lock()
		delete(l.watchers, &f)
		stranded := len(l.watchers) == 0 && l.deferred.Load()
		l.watchMu.Unlock()
		switch {
		case !stranded:
		case l.store == nil:
			_ = b.do(context.Background(), "settle", &step{}, new(reply))
		default: // not in the way of who stops
			go func() { _ = b.do(context.Background(), "settle", &step{}, new(reply)) }()
		}
	}
}

// watched reports whether somebody waits for the bucket.
func (l *ledger) watched() bool {
	l.watchMu.Lock()
	defer l.watchMu.Unlock()
	return len(l.watchers) > 0
}

func (l *ledger) changed() {
	l.gen.Add(1)
	l.watchMu.Lock()
	if len(l.watchers) == 0 {
		l.watchMu.Unlock()
		return
	}
	all := make([]func(), 0, len(l.watchers))
	for f := range l.watchers {
		all = append(all, *f)
	}
	l.watchMu.Unlock()
	for _, f := range all {
		f()
	}
}
