package main

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// sortedSetScript is an exact log as most write it: a sorted set with a member for each
// call of the past window. It answers 0, or the wait in µs.
var sortedSetScript = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1e6 + t[2]
local window = tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - window))
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then
  local oldest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  return math.max(1, oldest[2] + window - now)
end
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[3])
redis.call('PEXPIRE', KEYS[1], math.ceil(window / 1000))
return 0`)

// sortedSet names calls by a number at random for the worker, and one that counts. That
// is shorter than the identifiers that most use, and takes less memory.
func sortedSet() contender {
	return contender{
		name: "sorted set",
		peer: true,
		sharedWindow: func(rdb redis.UniversalClient, n int, window time.Duration) (func() bool, error) {
			ctx := context.Background()
			worker := strconv.FormatUint(uint64(rand.Uint32()), 36) + ":"
			var calls atomic.Uint64
			return func() bool {
				member := worker + strconv.FormatUint(calls.Add(1), 36)
				wait, err := sortedSetScript.Run(ctx, rdb, []string{"window"}, n, window.Microseconds(), member).Int64()
				return err == nil && wait == 0
			}, nil
		},
		command: "evalsha",
	}
}
