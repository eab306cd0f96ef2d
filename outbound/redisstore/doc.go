// Package redisstore keeps buckets in Redis, so that all processes of a fleet share one quota:
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	store := redisstore.New(rdb, redisstore.Config{})
//	bucket, err := outbound.NewSharedBucket(store, "shopify:"+shop, outbound.Limit{Capacity: 39, LeakRate: 2})
//
// Everything else stays as it is in one process: queues, transports, settling, holds. The package
// works with any client of github.com/redis/go-redis/v9, of 9.19.0 or newer: one server, Sentinel,
// Ring or Cluster. With [Do] any other client works. The server is Redis 6.2 or newer, Valkey or
// KeyDB. twemproxy closes the connection of every client of go-redis, because that sends HELLO
// (go-redis#2616), and so the store is unavailable. A client that sends no HELLO, as redigo, works.
//
// # What it guarantees
//
// A bucket is one key, and each step changes it atomically, by the server's clock. The clocks of
// the processes do not matter. What package store promises holds for all processes together,
// through lost replies, crashes of processes, and flushed scripts. The server charges a step
// exactly once, however often its reply is lost: a record in the key answers a step that comes
// again. This does not cover a process whose record is gone, because 768 other processes have used
// the key since: there a lost reply is charged twice.
//
// Redis loses data in a failover before the last writes were replicated, or when it evicts keys.
// Then the bucket loses what was charged: at most one more Capacity is admitted for each loss, and
// [store.EventDataLoss] reports it. Use a server whose maxmemory-policy is noeviction: it is
// unavailable when its memory is full, but keeps its data. The volatile policies, such as the
// default of ElastiCache, evict keys that expire, and all buckets do.
//
// After a failover in a Cluster calls go on once the client has learned of the new master. If the
// old one hangs, the client gives it up after its ReadTimeout. In go-redis 9.23 that is 5 s by
// default, and no context cuts it: set it to a second or less.
//
// While two servers take themselves for the master, both admit calls, and no event reports it. Two
// KeyDB servers with active-replica always do: let all processes use one of them. Elsewhere let
// each master need half of the other servers, rounded up, to write: with two replicas,
// min-replicas-to-write 1. A master that is cut off from its Cluster stops by itself after
// cluster-node-timeout.
//
// If the server's clock steps forward, up to LeakRate times the step more is admitted, at most a
// Capacity. If it steps back, the bucket loses the step and nothing else.
//
// # What it costs
//
// A decision takes one round trip. Concurrent decisions of one key share the next request, and
// those of many keys a pipeline. The store remembers a refusal, for a second at most, and repeats
// it without a request.
//
// The server carries out by itself what each call needs: booking, returning, settling, successes,
// refusals, holds and looks. For the rest the process reads the key, computes, and writes the key
// if no other process has written it since. That is Resume, Pause, SetLimits, Fillup, a remaining
// quota, and each sixteenth refusal, which decides about the speed. That takes two round trips or
// more. A process that loses such a race reserves the key for two of its own round trips, at most
// half a second, and the rest waits. A server whose scripts lack cmsgpack, as some substitutes of
// Redis in tests, carries out nothing by itself.
//
// # How far one key goes
//
// A step takes the server 30 µs, and 60 µs where more than a thousand processes use the key. So a
// key carries 15,000 steps a second or more. A process whose calls wait makes one request a call.
// With only one caller it makes two, because it looks at the clock again before the call leaves:
// use two callers. Ten thousand processes with two callers each have equal shares of 1,000/s, and
// use 99.7 % of it, with 9 % of the server's time. Where a key would need more than 40 % of
// that time, replies are late, and a call needs two requests. At 10,000/s the ten thousand use 92 %
// of the rate, and all of the server's time.
//
// Beyond that divide the processes into groups: each has a key of its own, and its part of the
// limit. Or run fewer processes with more callers: a process books up to 64 calls in a request. A
// key takes 350 bytes of the server with one process, 7 kB with a hundred, and 100 kB with a
// thousand or more.
//
// A key expires a minute after all of it has leaked, or after 30 days more if its limits were set.
//
// # When the server is unavailable
//
// No operation takes longer than Config.Timeout, whatever the client's own timeouts are. Until then
// the store repeats it under the same number, and makes a Cluster's client look for its nodes
// again. Then all callers that wait get an error that matches [store.ErrUnavailable]. For a moment,
// 20 ms to 250 ms, the store answers every call so immediately, while one request finds out whether
// the server is up again.
//
// A server is unavailable if waiting can help: it is down, hangs, loads its data, only reads,
// cannot save, or lacks memory, connections, replicas or its cluster. The same holds for a client
// without a free connection. [store.EventDown] reports it, and [store.EventUp] its end. A wrong
// password, a missing permission, a renamed command or a rejected certificate is no outage.
// Operations then fail with the words of the server or of the client, and [store.EventDenied]
// reports it once.
//
// # What the server sees
//
// The store hashes keys unless Config.PlainKeys is set, so that a token in a bucket's key shows in
// no slow log. Limit names are readable in the key. The store checks what it reads. A key with
// other contents than this package writes, or of another type, begins again, full to the capacity,
// and [store.EventCorrupt] reports it. If the server has booked another number of calls than
// package store would have, an EventCorrupt with an Err reports that, and the key goes by swap for
// a minute.
//
// A user that may do no more than it needs is made so; the last two are for a Cluster's client:
//
//	ACL SETUSER dripfeed on >password ~dripfeed:* -@all +evalsha +eval +time
//	    +hmget +hget +hset +hdel +hlen +hgetall +del +pexpire +cluster|slots +command
package redisstore
