// Package redisstore keeps buckets in Redis, so that all processes of a fleet share
// one quota:
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	store := redisstore.New(rdb, redisstore.Config{})
//	bucket, err := outbound.NewSharedBucket(store, "shopify:"+shop, outbound.Limit{Capacity: 40, LeakRate: 2})
//
// Everything else stays as it is in one process: queues, transports, settling,
// holds. It works with any client of github.com/redis/go-redis/v9, of 9.19.0 or
// newer: one server, Sentinel or Cluster, with Redis 6.2 or newer.
//
// # What it guarantees
//
// A bucket is one key, and every decision one run of one script: atomic, by the
// server's own clock. The clocks of the workers do not matter. In any interval of
// length W at most Capacity + LeakRate*W units go out of all workers together, as
// package outbound says, through lost replies, crashes of workers, and scripts that
// were flushed. A decision is charged exactly once however often its reply is lost:
// each request has a number, and a record in the key answers a number that comes
// again. What comes back is bounded by what is on record. An answer that comes more
// than 100 ms later than such answers do is not used: the place is given back and asked
// for anew.
//
// When Redis loses data, as in a failover before the last writes were replicated,
// or when it evicts keys, what was charged is lost with it: at most one more
// Capacity goes out for each time, and [EventDataLoss] tells of it. Use a server whose
// maxmemory-policy is noeviction: without memory it is away, and loses nothing. Under
// the others each eviction of a bucket costs a Capacity. The volatile ones, above all
// volatile-ttl, evict buckets before anything else, because buckets expire and mostly soon:
// under full memory each lives for a moment, and about twice the rate goes out for as
// long as that lasts.
//
// While two servers take themselves for the master both admit, and nobody hears of it: if
// that lasts for W, up to Capacity + LeakRate*W more go out. In a failover that Sentinel
// was told to begin W is about a second, and in a network that is cut in two as long
// as that lasts. Let each master need half of the other servers, rounded up, to write:
// with two replicas, min-replicas-to-write 1. Then two masters never write at the same
// time for longer than min-replicas-max-lag, and in a failover that was told not at
// all. With a single replica that setting stops a lone master. A master that is cut off
// from its Cluster stops by itself after cluster-node-timeout.
//
// A clock of the server that steps forward costs LeakRate times the step, at most a
// Capacity, and nobody is told of it: steps add up. One that steps back loses the step and
// nothing else, and what it goes forward again counts as a step only if it was more than a second
// back. So a clock that wobbles by 50 ms to either side costs LeakRate*100 ms once.
//
// # What it costs
//
// One trip for a decision; concurrent ones of one key go together in the next trip,
// and those of many keys in pipelines, at most four under way to one server. A
// refusal is remembered, for a second at most, and costs no trip to hear again. A
// bucket of one limit takes about 250 bytes of the server with one worker and 730
// with ten; a key expires when nothing is left in it, a minute later, and one whose
// limits were set with SetLimits after 30 days.
//
// A key knows the 768 workers that have used it last, and some 1 000 at most. Where more use
// it at the same time, a decision takes the server about 1.5 times as long, a worker that is
// not known gets nothing back of what it has booked before, and one whose reply is lost
// besides is charged twice: room is lost, and none is gained.
//
// # How far away it may be
//
// A queue's calls leave at their places, which are times of the server, within the
// queue's tolerance, whatever the distance. A place that would be due before its reply
// is there is not booked: an idle bucket's first call waits for a trip and the
// reply's jitter, and the very first call of a process for a trip more. Simulated with
// 1 to 20 workers that always had calls waiting, 10 to 1 000 calls per second, and
// jitter of 10 % of each way, in runs of 6 s with pauses between them, the first
// trips of each run included, these shares of the leak rate were used:
//
//	round trip    1 ms   20 ms   50 ms  100 ms  200 ms  500 ms  2 and 200 ms
//	used, %        100   99–101  98–100   97–99   93–98   72–93        96–101
//
// Once a run was under way, all of the rate was used up to 200 ms, and 88 to 99 % at 500 ms. Where
// half of the workers were near and half of them far all had equal shares (Jain's index:
// 0.98 and more). Calls left up to 7 ms after their places at 200 ms, and 20 ms at 500 ms,
// where the tolerance was 5 ms: the rest is what jitter makes of the estimate below.
// A worker hears of a hold a trip and a half later at most, or 25 ms and a reply's way
// back where a trip takes less: so many calls may go into it. It hears of a Resume
// no sooner: for as long it may go on to use places that the Resume has made void, beside
// those who book them anew. SetLimits leaves the places of the next second as they are.
//
// Order of booking is order of departure. Where some workers are near and others far, a
// call of one who is far, and has no others waiting, has a place as far ahead as its
// reply's way back is long, and what a near worker books meanwhile comes after it: with
// few calls waiting, near workers then are not much faster than far ones. The offset
// between the clocks is estimated from the trips: a route on which the way there and the
// way back differ for good lays all of this worker's calls off by half the difference.
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
// timeouts are. Until then it is tried again under the same number, and a Cluster's
// client is told to look for its nodes anew. Then all who wait hear of it, in an
// [*outbound.StoreError] that is [outbound.ErrAway], and for a moment, 20 ms to 250 ms, all
// that comes is answered so at once, while one request finds out whether the
// server is back. A fallback.Store, of the package
// outbound/fallback, around this one says what calls do meanwhile.
//
// While a Cluster's master hangs, its replicas are asked too, some ten times a second: calls
// go on within half a second after one is promoted, and do not wait for the client to
// give the old one up. Only a client that has reached no node yet, reads from replicas or
// has a ClusterSlots of its own finds the new master by its own timeouts.
//
// Away is all that a wait can cure: a server that is down or hangs, one that loads
// its data, has no memory left, only reads, cannot save or misses its replicas or its
// cluster, and a client or a server without a connection left. [EventAway] tells of it,
// and [EventBack] of its end. What no wait cures is not away: a password that is missing
// or wrong, and a missing permission. Operations then fail at once with the
// server's words, [EventDenied] tells of it once, and no fallback takes over.
//
// A client whose own connections are used up says so, as redis.ErrPoolTimeout, where its
// PoolTimeout is shorter than Config.Timeout. The other workers go on meanwhile, and the
// share that a fallback gives this one comes on top of the whole rate: give the store a
// client of its own, or a PoolSize that is enough for all who use it.
//
// The client logs by itself while it cannot connect, to the standard error, however often
// it tries: redis.SetLogger takes another logger, and logging.Disable of go-redis ends it.
//
// # What the server sees
//
// Keys are hashed unless Config.PlainKeys is set, so that a token in a bucket's key
// shows in no slow log. Limit names are readable in the key's fields. What is read
// back is not trusted: a key that holds anything else than this package writes, or is
// of another type, is deleted and begins anew, full to the brim, and is reported as
// [EventGarbage].
//
// A user that may do no more than it needs is made so; the last two are for a
// Cluster's client:
//
//	ACL SETUSER dripfeed on >password ~dripfeed:* -@all +evalsha +eval +time
//	    +hmget +hset +hdel +hlen +hgetall +del +pexpire +cluster|slots +command
package redisstore
