package redisstore

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
)

// clusterClient is what a Cluster's client can do.
type clusterClient interface {
	ReloadState(context.Context)
	MasterForKey(context.Context, string) (*redis.Client, error)
}

// nodes returns how the engine finds the nodes of a Cluster, or nil if the client is for one server.
func nodes(c *carrier) *engine.Nodes {
	client, is := c.rdb.(clusterClient)
	if !is {
		return nil
	}
	owner := func(ctx context.Context, key string) (string, engine.Verdict, error) {
		rdb, err := client.MasterForKey(ctx, c.config.name(key))
		if err != nil {
			return "", verdict(err), err
		}
		return rdb.Options().Addr, engine.Done, nil
	}
	return &engine.Nodes{
		Owner: owner,
		Known: func(key string) string { // once the client knows the nodes, it asks none
			addr, _, _ := owner(context.Background(), key)
			return addr
		},
		// By itself the client continues to dial a node that has died for a minute.
		Refresh: func() { client.ReloadState(context.Background()) },
	}
}
