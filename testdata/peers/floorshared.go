package main

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// bookScript only books a reservation. It is the least that a decision in the server needs, by the
// server's clock, in one round trip. It never refuses.
var bookScript = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1e6 + t[2]
local tat = tonumber(redis.call('GET', KEYS[1]) or 0)
if tat < now then tat = now end
redis.call('SET', KEYS[1], string.format('%.0f', tat + tonumber(ARGV[1])), 'PX', 60000)
return string.format('%.0f', tat)`)

func minimalScript() contender {
	return contender{
		name: "floor: a minimal script",
		shared: func(rdb redis.UniversalClient) (func(string) bool, error) {
			ctx := context.Background()
			return func(key string) bool {
				return bookScript.Run(ctx, rdb, []string{key}, 1).Err() == nil
			}, nil
		},
		command: "evalsha",
		keeps:   true,
	}
}

// ping measures the round trip alone.
func ping() contender {
	return contender{
		name: "floor: PING",
		shared: func(rdb redis.UniversalClient) (func(string) bool, error) {
			ctx := context.Background()
			return func(string) bool { return rdb.Ping(ctx).Err() == nil }, nil
		},
		command: "ping",
	}
}
