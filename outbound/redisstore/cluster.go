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

// find has the client of a Cluster ask for the nodes, the first time. It returns nil if the client
// knows them, or is for one server.
func (c *carrier) find(ctx context.Context) error {
	if c.cluster == nil || c.found.Load() {
		return nil
	}
	_, err := c.cluster.MasterForKey(ctx, "")
	c.found.Store(err == nil)
	return err
}

// nodes returns how the engine finds the nodes of a Cluster, or nil if the client is for one
// server.
func (c *carrier) nodes() *engine.Nodes {
	if c.cluster == nil {
		return nil
	}
	return &engine.Nodes{
		Known: func(key string) string {
			if !c.found.Load() {
				return ""
			}
			rdb, err := c.cluster.MasterForKey(context.Background(), c.config.name(key)) // asks no node
			if err != nil {
				return ""
			}
			return rdb.Options().Addr
		},
		// By itself the client continues to dial a node that has died for a minute.
		Refresh: func() { c.cluster.ReloadState(context.Background()) },
	}
}
