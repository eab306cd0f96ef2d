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
// Capacity goes out for each time. Use a server, or a database, whose
// maxmemory-policy is noeviction. The same holds for a clock of the server that steps
// forward. One that steps back loses the step and nothing else.
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
// # When the server is away
//
// No operation takes longer than Config.Timeout, whatever the client's own
// timeouts are. Until then it is tried again under the same number, and a Cluster's
// client is told to look for its nodes anew. Then all who wait hear of it, in an
// [*outbound.StoreError] that is [outbound.ErrAway], and for a moment, 20 ms to 250 ms, all
// that comes is answered so at once, while one request finds out whether the
// server is back. An [outbound.Fallback] around the store says what calls do
// meanwhile.
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
