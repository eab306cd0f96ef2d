package redisstore

import (
	"context"
	"sync"

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
	nodes  sync.Map // of what the client has named: its own *redis.Client, by address
}

// nodes returns how the engine finds the nodes of a Cluster, or nil if it is none.
func nodes(c *carrier) *engine.Nodes {
	client, is := c.rdb.(clusterClient)
	if !is {
		return nil
	}
	c.cluster = &cluster{clusterClient: client, config: &c.config}
	n := &engine.Nodes{Owner: c.cluster.owner, Known: c.cluster.known, Refresh: c.cluster.refresh}
	if o := client.Options(); !o.ReadOnly && o.ClusterSlots == nil { // its replicas say that they are none
		n.Heir = c.cluster.heir
	}
	return n
}

// client returns the client of a node that was named before.
func (c *cluster) client(node string) *redis.Client {
	rdb, _ := c.nodes.Load(node)
	return rdb.(*redis.Client)
}

// address returns the address of a node, and remembers its client.
func (c *cluster) address(rdb *redis.Client, err error) string {
	if err != nil {
		return ""
	}
	addr := rdb.Options().Addr
	if old, _ := c.nodes.Load(addr); old != rdb {
		c.nodes.Store(addr, rdb)
	}
	return addr
}

// owner asks the client for the master of a bucket's key. The client heeds no deadline
// while it asks the nodes for it.
func (c *cluster) owner(ctx context.Context, key string) (string, engine.Verdict, error) {
	rdb, err := c.MasterForKey(ctx, c.config.name(key))
	if err != nil {
		return "", judge(err), err
	}
	return c.address(rdb, nil), engine.Done, nil
}

// known is owner once the client knows any node. It asks nobody then.
func (c *cluster) known(key string) string {
	return c.address(c.MasterForKey(context.Background(), c.config.name(key)))
}

// heir asks the client for a replica. The first time that it is asked for one it sends that
// a PING, and heeds no deadline.
func (c *cluster) heir(key string) string {
	return c.address(c.SlaveForKey(context.Background(), c.config.name(key)))
}

// refresh has the client look for the nodes again: by itself it goes on dialing one that
// has died for a minute.
func (c *cluster) refresh() { c.ReloadState(context.Background()) }
