package redisstore

import "time"

// list has the caller of an operation wait from now on for Config.Timeout at most,
// whatever its operation waits for: other trips, a repetition, a client that hangs.
// The shard's lock is held, here and in what follows.
func (sh *shard) list(w *wait, now time.Time) {
	w.until = now.Add(sh.store.config.Timeout)
	if w.before = sh.last; w.before != nil {
		w.before.after = w
	} else {
		sh.first = w
	}
	sh.last = w
	if sh.clock == nil {
		sh.clock = time.AfterFunc(sh.store.config.Timeout, sh.lapse)
	}
}

// unlist takes an operation from the list, if it is there.
func (sh *shard) unlist(w *wait) {
	if w.before != nil {
		w.before.after = w.after
	} else if sh.first == w {
		sh.first = w.after
	}
	if w.after != nil {
		w.after.before = w.before
	} else if sh.last == w {
		sh.last = w.before
	}
	w.before, w.after = nil, nil
}

// end notes that an operation has its answer.
func (sh *shard) end(w *wait) {
	sh.unlist(w)
	w.over = true
}

// lapse lets those go who have waited for too long.
func (sh *shard) lapse() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := time.Now()
	for w := sh.first; w != nil && !w.until.After(now); w = sh.first {
		w.err = &awayError{sh.store.silent()}
		sh.drop(w, w.err)
		w.lapsed = true
		w.ready <- struct{}{}
	}
	if sh.first == nil {
		sh.clock = nil
		return
	}
	sh.clock.Reset(sh.first.until.Sub(now))
}
