package main

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// by makes rueidis the client of a store. The client is for one server, Sentinel or a Cluster.
func by(client rueidis.Client) redisstore.Do {
	return func(ctx context.Context, commands [][]string) []any {
		batch := make([]rueidis.Completed, len(commands))
		for i, c := range commands { // EVALSHA, script, "1", key, arguments
			batch[i] = client.B().Arbitrary(c[:3]...).Keys(c[3]).Args(c[4:]...).Build()
		}
		replies := make([]any, len(commands))
		for i, result := range client.DoMulti(ctx, batch...) {
			reply, err := result.ToAny()
			if answer, ok := rueidis.IsRedisErr(err); ok {
				reply = redisstore.Error(answer.Error())
			} else if err != nil {
				reply = err
			}
			replies[i] = reply
		}
		return replies
	}
}
