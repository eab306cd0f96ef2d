package redisstore

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// recipient is the node of a Cluster to which an attempt goes whatever the client takes
// for the master of its keys. While a master hangs, the client may hear of the one that
// was promoted only after timeouts of its own.
type recipient struct {
	client *redis.Client
	aside  bool // in the lane's place: if it answers, it was promoted
}

// other returns another node that may have the lane's keys by now, or nil: the one that
// the client takes for their master, or the replica that seek has found. A replica says
// that it does not have them, unless the client reads from replicas. Nobody is asked
// here, because the client knows the lane's node. The shard's lock is held, here and in
// what follows.
func (la *lane) other() *redis.Client {
	s := la.shard.store
	if !s.seeks || la.key == "" || la.aside >= attemptsAtOnce {
		return nil
	}
	c, err := s.cluster.MasterForKey(context.Background(), la.key)
	if err == nil && c.Options().Addr == la.node {
		return la.replica
	}
	if err != nil {
		return nil
	}
	return c
}

// seek finds a replica of the lane's node, for a batch that is late. The first time that
// the client is asked for a replica it sends it a PING, and heeds no deadline: whoever
// holds a lock must not wait for that.
func (la *lane) seek(b *batch) {
	s := la.shard.store
	if !s.seeks || la.key == "" || la.seeking {
		return
	}
	la.seeking = true
	key := la.key
	go func() {
		c, err := s.cluster.SlaveForKey(context.Background(), key)
		if err != nil || c.Options().Addr == la.node {
			c = nil
		}
		la.shard.mu.Lock()
		defer la.shard.mu.Unlock()
		first := la.replica == nil
		la.seeking, la.replica = false, c
		if first && !b.over && !b.aside && la.other() != nil {
			b.timer.Reset(0)
		}
	}()
}

// recipient returns who is to have an attempt; nil: whom the client takes for the master.
func (la *lane) recipient(aside bool) *recipient {
	if aside || la.out >= attemptsAtOnce {
		if c := la.other(); c != nil {
			return &recipient{c, true}
		}
	}
	if la.direct == nil {
		return nil
	}
	if la.shard.store.serves(la.node, la.key) {
		la.direct, la.after = nil, nil
		return nil
	}
	return &recipient{la.direct, false}
}

// count notes that an attempt begins, by 1, or has ended, by -1.
func (la *lane) count(to *recipient, by int) {
	if to != nil && to.aside {
		la.aside += by
		return
	}
	la.out += by
	if by > 0 {
		la.began = time.Now()
	}
}

// replace moves the lines of a lane to that of the node which has answered in its place.
func (sh *shard) replace(la *lane, by *redis.Client) {
	to := sh.lane(by.Options().Addr)
	to.key, to.direct, to.after, to.outage = la.key, by, la.server, outage{}
	for _, ln := range sh.lines {
		if ln.lane == la {
			ln.lane = to
		}
	}
	for _, ln := range la.ready {
		to.push(ln)
	}
	clear(la.ready)
	la.ready = la.ready[:0]
}

// serves reports whether the client takes a node for the master of a key. It asks nobody
// where it knows any node.
func (s *Store) serves(node, key string) bool {
	c, err := s.cluster.MasterForKey(context.Background(), key)
	return err == nil && c.Options().Addr == node
}
