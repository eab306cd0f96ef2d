package redisstore

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is what was told of one, by all the lanes to it.
type server struct {
	ill atomic.Bool // away or denies

	mu     sync.Mutex // protects what follows
	away   bool
	key    string // one that it had in a Cluster when it was last found away
	since  time.Time
	back   time.Time // when it was last told that it is back
	denies bool
	told   time.Time // when it was last told that it denies
}

// server returns what is known of the server at an address.
func (s *Store) server(addr string) *server {
	s.mu.Lock()
	defer s.mu.Unlock()
	sv := s.servers[addr]
	if sv == nil {
		sv = new(server)
		s.servers[addr] = sv
	}
	return sv
}

// down notes that a lane's server is away, as what was tried from began on has found. If
// another lane has found it back since, that is no news.
func (sv *server) down(la *lane, err error, began, now time.Time) {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	if !sv.away && !began.After(sv.back) {
		return
	}
	sv.since, sv.key = now, la.key
	if !sv.away {
		sv.away = true
		sv.note(la.shard.store)
		la.shard.store.tell(EventAway, "", err)
	}
}

// up notes that it has done what was sent at this time.
func (sv *server) up(s *Store, sent time.Time) {
	if !sv.ill.Load() {
		return
	}
	sv.mu.Lock()
	defer sv.mu.Unlock()
	sv.denies = false
	sv.answered(s, sent)
}

// answered notes that it has answered what was sent at this time: before it was found
// away, that says nothing. mu is held.
func (sv *server) answered(s *Store, sent time.Time) {
	if sv.away && sent.After(sv.since) {
		sv.away, sv.back = false, time.Now()
		s.tell(EventBack, "", nil)
	}
	sv.note(s)
}

// note notes whether it is ill. mu is held.
func (sv *server) note(s *Store) {
	ill := sv.away || sv.denies
	if sv.ill.Swap(ill) == ill {
		return
	}
	if ill {
		s.ill.Add(1)
	} else {
		s.ill.Add(-1)
	}
}

// refused notes an error with which the server has answered what was sent at this time.
func (la *lane) refused(err error, sent time.Time) {
	if errors.Is(err, redis.ErrClosed) {
		return // the server was not asked
	}
	if la.cause != nil {
		la.outage = outage{}
	}
	sv, s := la.server, la.shard.store
	sv.mu.Lock()
	defer sv.mu.Unlock()
	if now := time.Now(); denied(err) && !sv.denies {
		sv.denies = true
		if sv.told.IsZero() || now.Sub(sv.told) > time.Minute {
			sv.told = now
			s.tell(EventDenied, "", err)
		}
	}
	sv.answered(s, sent)
}

// inPlace notes that a lane's server has done what was sent at this time: that ends the
// outages of those whose keys it has now.
func (s *Store) inPlace(la *lane, sent time.Time) {
	if s.cluster == nil || s.ill.Load() == 0 {
		return
	}
	if la.after != nil {
		la.after.up(s, sent)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sv := range s.servers {
		if sv == la.server || !sv.ill.Load() {
			continue
		}
		sv.mu.Lock()
		key := sv.key
		sv.mu.Unlock()
		if key != "" && s.serves(la.node, key) {
			sv.up(s, sent)
		}
	}
}
