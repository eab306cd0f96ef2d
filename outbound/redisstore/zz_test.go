package redisstore_test

import (
	"context"
	"fmt"
	"regexp"
	"testing"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/outbound/redisstore/internal/redistest"
)

func TestServerTime(t *testing.T) {
	ctx := context.Background()
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	show := func(what string) {
		s := rdb.Info(ctx, "commandstats").Val()
		for _, l := range regexp.MustCompile(`cmdstat_(\w+):calls=(\d+),usec=\d+,usec_per_call=([\d.]+)`).FindAllStringSubmatch(s, -1) {
			t.Log(what, l[1], l[2], l[3])
		}
		rdb.ConfigResetStat(ctx)
	}
	for i := range 20000 {
		minimal.Run(ctx, rdb, []string{fmt.Sprint("minimal:", i%1)}, 1)
	}
	show("minimal")
	s := redisstore.New(rdb, redisstore.Config{})
	b := outbound.Must(outbound.NewSharedBucket(s, "k", outbound.Limit{Capacity: 1e11, LeakRate: 1e9}))
	for range 20000 {
		p, err := b.Acquire(ctx, outbound.Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		p.Done()
	}
	show("dripfeed")
	for range 10 {
		b := outbound.Must(outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{}), "k", outbound.Limit{Capacity: 1e11, LeakRate: 1e9}))
		b.Acquire(ctx, outbound.Cost{1})
		t.Log(rdb.MemoryUsage(ctx, s.Key("k")).Val(), rdb.ObjectEncoding(ctx, s.Key("k")).Val(), rdb.Do(ctx, "DEBUG","LISTPACK", s.Key("k")).Val(), rdb.HGetAll(ctx, s.Key("k")).Val(), rdb.ConfigGet(ctx,"hash-max*").Val())
	}
}
