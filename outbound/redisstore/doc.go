// Package redisstore keeps buckets in Redis, so that all processes of a fleet share
// one quota:
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	store := redisstore.New(rdb, redisstore.Config{})
//	bucket, err := outbound.NewSharedBucket(store, "shopify:"+shop, outbound.Limit{Capacity: 40, LeakRate: 2})
//
// Everything else stays as it is in one process: queues, transports, settling,
// holds. The package works with any client of github.com/redis/go-redis/v9, of 9.19.0
// or newer: one server, Sentinel or Cluster, with Redis 6.2 or newer.
//
// # What it guarantees
//
// A bucket is one key, and every decision is one run of one script: atomic, by the
// server's own clock. The clocks of the workers do not matter. In any interval of
// length W at most Capacity + LeakRate*W units go out of all workers together, as
// package outbound says, through lost replies, crashes of workers, and scripts that
// were flushed. The server charges a decision exactly once, however often its reply is
// lost: each request has a number, and a record in the key answers a number that comes
// again. This does not cover a process whose record is gone, because 768 other processes
// have used the key since: a lost reply is charged twice there. What a worker gives back is bounded by what is on record. A worker does not use
// an answer that comes more than 100 ms later than such answers do. It gives the place
// back and asks anew.
//
// When Redis loses data, as in a failover before the last writes were replicated,
// or when it evicts keys, the bucket loses what was charged: at most one more Capacity
// goes out for each loss, and [EventDataLoss] tells of it. Use a server whose
// maxmemory-policy is noeviction: without memory it is away, and loses nothing. Under
// the other policies each eviction of a bucket costs a Capacity. The volatile ones, above
// all volatile-ttl, evict buckets before anything else, because buckets expire, and most
// of them soon. While memory is full each bucket lives for a moment, and about twice the
// rate goes out.
//
// While two servers take themselves for the master, both admit calls, and no event tells
// of it. If that lasts for W, up to Capacity + LeakRate*W more go out. In a failover that an
// operator asks Sentinel for, W is about a second. In a network that is cut in two it is as
// long as the cut lasts. Let each master need half of the other servers, rounded up, to
// write: with two replicas, min-replicas-to-write 1. Then two masters never write at the
// same time for longer than min-replicas-max-lag, and not at all in a planned failover. With
// a single replica that setting stops a lone master. A master that is cut off from its
// Cluster stops by itself after cluster-node-timeout.
//
// If the server's clock steps forward, up to LeakRate times the step more go out, at most
// a Capacity, and no event tells of it: steps add up. If it steps back, the bucket loses the
// step and nothing else, and a step forward after it counts as one only if the clock was
// more than a second back. So a clock that wobbles by 50 ms to either side costs
// LeakRate*100 ms once.
//
// # What it costs
//
// A decision takes one trip. Concurrent decisions of one key go together in the next trip,
// and those of many keys in pipelines, at most four under way to one server. The store
// remembers a refusal, for a second at most, and repeats it without a trip. A bucket of one
// limit takes about 250 bytes of the server with one worker and 860 with ten. A key
// expires a minute after all of it has leaked, or after 30 days if SetLimits has set its
// limits.
//
// A window keeps a log, of at most 128 entries of 32 bytes: a bucket of Window(1000, time.Minute) with
// a call each second takes 2.9 kB of the server. A decision that has room reads and writes the two ends
// of it only, and the other entries when a new one begins: that is at most 64 times in a window. It
// takes the server twice the time of one by a leaky limit, and up to three times where the other
// entries are read: BenchmarkServer. A calendar takes as much as a leaky limit and 100 bytes. Its time
// is the server's clock, so the clocks of the workers do not matter, and a worker whose estimate of it
// is more than a period off asks twice.
//
// A key keeps the records of the 768 processes that have used it last, and of 1,000 at most.
// If more use it at the same time, a decision takes the server about 1.5 times as long. A
// process without a record gets nothing back of what it booked before. Such a process loses
// capacity, and never gains any.
//
// A key keeps the levels of names that limits had before SetLimits: eight, and as many more as are not
// empty, up to 64. Beyond these it forgets the one that would be empty first, as package leak does.
//
// # How far away it may be
//
// A queue's calls leave at their places, which are times of the server, within the
// queue's tolerance, whatever the distance. The queue does not book a place that is due
// before its reply can be there: an idle bucket's first call waits for a trip and the
// reply's jitter, and the very first call of a process for a trip more. Simulated with
// 1 to 20 workers that always had calls waiting, 10 to 1 000 calls per second, and
// jitter of 10 % of each way, in runs of 6 s with pauses between them, the first
// trips of each run included, these shares of the leak rate were used:
//
//	round trip    1 ms   20 ms   50 ms  100 ms  200 ms  500 ms  2 and 200 ms
//	used, %        100   99–101  98–100   97–99   93–98   72–93        96–101
//
// Once a run was under way, the workers used all of the rate up to 200 ms, and 88 to 99 % at
// 500 ms. Where half of the workers were near and half of them far, all had equal shares
// (Jain's index: 0.98 and more). Calls left up to 7 ms after their places at 200 ms, and 20 ms
// at 500 ms, where the tolerance was 5 ms: the rest is what jitter makes of the estimate
// below. A worker hears of a hold a trip and a half later at most, or 25 ms and a reply's way
// back where a trip takes less: so many calls may go into the hold. It hears of a Resume
// no sooner. For as long it may go on to use places that the Resume has made void, beside
// the workers that book them anew. SetLimits leaves the places of the next second as they are.
//
// Calls depart in the order of booking. A far worker with one call waiting gets a place as
// far ahead as its reply's way back is long, and what a near worker books meanwhile comes
// after it: with few calls waiting, near workers then are not much faster than far ones. The
// store estimates the offset between the clocks from the trips. A route whose way there is
// longer or shorter than its way back for good shifts all calls of this worker by half the
// difference.
//
// A bucket without a queue cannot wait: its calls leave when the reply is there, late by
// its way back, and 100 ms at most beyond what is normal.
//
// The first decision opens a connection, which has to fit into Config.Timeout. It takes
// up to six round trips with go-redis's defaults: to connect, HELLO, CLIENT
// MAINT_NOTIFICATIONS, CLIENT SETINFO, EVALSHA, and EVAL if the server does not know
// the script yet. Measured with the default of 1 s, that was in time at 150 ms and not at
// 200 ms. Options.DisableIdentity and a MaintNotificationsConfig with ModeDisabled spare
// two of them: 0.83 s at 200 ms. Further away, let Timeout be eight round trips.
//
// # When the server is away
//
// No operation takes longer than Config.Timeout, whatever the client's own
// timeouts are. Until then the store repeats it under the same number, and tells a
// Cluster's client to look for its nodes anew. Then all callers that wait get an
// [*outbound.StoreError] that is [outbound.ErrAway]. For a moment, 20 ms to 250 ms, the store
// answers every call so at once, while one request finds out whether the server is back. A
// fallback.Store, of the package outbound/fallback, around this one says what calls do
// meanwhile.
//
// While a Cluster's master hangs, the store asks its replicas too, some ten times a second:
// calls go on within half a second after one is promoted, and do not wait for the client to
// give the old one up. Only a client that has reached no node yet, has not heard of the
// replica yet, reads from replicas or has a ClusterSlots of its own finds the new master by
// its own timeouts.
//
// A server is away if a wait can cure its state: it is down, hangs, loads its data, has no
// memory left, only reads, cannot save, or misses its replicas or its cluster, or it or the
// client has no connection left. [leak.EventDown] tells of it, and [leak.EventUp] of its end. A
// missing or wrong password, and a missing permission, are not away, because no wait cures
// them: operations fail at once with the server's words, [leak.EventDenied] tells of it once, and
// no fallback takes over.
//
// A client whose own connections are used up says so, as redis.ErrPoolTimeout, where its
// PoolTimeout is shorter than Config.Timeout. The other workers go on meanwhile, and the
// share that a fallback gives this one comes on top of the whole rate: give the store a
// client of its own, or a PoolSize that is enough for all its users. The store itself uses up
// to 16 connections at a time while a server hangs. With fewer, as by go-redis's default on
// one processor, some calls wait for Timeout each where they would fail at once.
//
// The client itself logs each failed attempt to connect, to the standard error:
// redis.SetLogger takes another logger, and logging.Disable of go-redis ends it.
//
// # What the server sees
//
// The store hashes keys unless Config.PlainKeys is set, so that a token in a bucket's key
// shows in no slow log. Limit names are readable in the key's fields. The store does not
// trust what it reads: it deletes a key that holds anything else than this package writes,
// or is of another type. The key begins anew, full to the brim, and [leak.EventCorrupt] tells of
// it.
//
// A user that may do no more than it needs is made so; the last two are for a
// Cluster's client:
//
//	ACL SETUSER dripfeed on >password ~dripfeed:* -@all +evalsha +eval +time
//	    +hmget +hset +hdel +hlen +hgetall +del +pexpire +cluster|slots +command
//
// # The files
//
// Package outbound/internal/engine gathers callers into trips and makes each trip exactly
// once. This package carries a trip out, as one run of bucket.lua:
//
//	store.go    Config and Store, for programs
//	key.go      the server's name of a key
//	script.go   bucket.lua with kinds.lua, which has windows and calendars, and its digest
//	request.go  a trip as the script reads it
//	answer.go   the script's answer as a reply
//	row.go      the row of refusals in an answer
//	places.go   the charges that the script leaves to be computed here
//	loss.go     how a loss of data shows
//	cause.go    errors, and whether a wait cures them
//	cluster.go  which node has a key
//	carrier.go  what the engine asks: Compose, Send, Take
package redisstore
