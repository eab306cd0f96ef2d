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
	SlaveForKey(context.Context, string) (*redis.Client, error)
	Options() *redis.ClusterOptions
}

// cluster finds the nodes of a Cluster.
type cluster struct {
	clusterClient
	config *Config
}

// node is one of its nodes.
type node struct{ *redis.Client }

// Addr implements [engine.Node].
func (n node) Addr() string { return n.Options().Addr }

// of returns the node of a client, or nil if there is none.
func of(rdb *redis.Client, err error) engine.Node {
	if err != nil {
		return nil
	}
	return node{rdb}
}

// nodes returns how the engine finds the nodes of a Cluster, or nil if it is none.
func nodes(c *carrier) *engine.Nodes {
	client, is := c.rdb.(clusterClient)
	if !is {
		return nil
	}
	cl := &cluster{clusterClient: client, config: &c.config}
	n := &engine.Nodes{Owner: cl.owner, Known: cl.known, Refresh: cl.refresh}
	if o := client.Options(); !o.ReadOnly && o.ClusterSlots == nil { // its replicas say that they are none
		n.Heir = cl.heir
	}
	return n
}

// owner asks the client for the master of a bucket's key. The client heeds no deadline
// while it asks the nodes for it.
func (c *cluster) owner(ctx context.Context, key string) (engine.Node, engine.Verdict, error) {
	rdb, err := c.MasterForKey(ctx, c.config.name(key))
	if err != nil {
		return nil, verdict(err), err
	}
	return node{rdb}, engine.Done, nil
}

// known is owner once the client knows any node. It asks nobody then.
func (c *cluster) known(key string) engine.Node {
	return of(c.MasterForKey(context.Background(), c.config.name(key)))
}

// heir asks the client for a replica. The first time that it is asked for one it sends that
// a PING, and heeds no deadline.
func (c *cluster) heir(key string) engine.Node {
	return of(c.SlaveForKey(context.Background(), c.config.name(key)))
}

// refresh has the client look for the nodes again: by itself it goes on dialing one that
// has died for a minute.
func (c *cluster) refresh() { c.ReloadState(context.Background()) }
