package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// plentyShared is a rate per second, and a burst, that no server can exhaust. It is
// lower than plenty, so that a call still shows in a time that is a double of
// seconds.
const plentyShared = 10_000_000

// sharers lists the contenders with limits in Redis. Ratios refer to the first.
func sharers() []contender {
	return []contender{
		minimalScript(),
		ping(),
		dripfeedShared(),
		dripfeedSharedLimits(),
		redisRate(),
		throttledRedis(),
	}
}

// sharedScenarios lists the scenarios through Redis, in the order of the tables.
func sharedScenarios(o options, s *server) []scenario {
	return []scenario{
		sharedDecision(o, s, 1, 1),
		sharedDecision(o, s, 64, 1),
		sharedDecision(o, s, 256, 1),
		sharedDecision(o, s, 256, 1000),
		sharedRefusal(o, s),
		serverTime(o, s, 1),
		serverTime(o, s, 256),
		weight(s, 1),
		weight(s, 10),
	}
}

// columnOf returns the name of a column.
func columnOf(goroutines, keys int) string {
	if keys == 1 {
		return fmt.Sprintf("%d, 1 key", goroutines)
	}
	return fmt.Sprintf("%d, %d keys", goroutines, keys)
}

const sharedSection = "A decision through Redis, µs"

// sharedDecision measures an admitted decision.
func sharedDecision(o options, s *server, goroutines, keys int) scenario {
	column := columnOf(goroutines, keys)
	return scenario{
		section: sharedSection,
		name:    "through Redis, " + column,
		metrics: []metric{{name: column, digits: 2, ratio: true}},
		offered: func(c contender) bool { return c.shared != nil },
		measure: func(c contender) (sample, error) {
			rdb, err := s.empty()
			if err != nil {
				return sample{}, err
			}
			take, err := c.shared(rdb)
			if err != nil {
				return sample{}, err
			}
			_, ns, allocated, wrong, err := drive(o.Benchtime, take, goroutines, keys)
			return sample{[]float64{ns / 1e3}, wrong, &allocated}, err
		},
	}
}

// sharedRefusal measures a refused decision.
func sharedRefusal(o options, s *server) scenario {
	return scenario{
		section: sharedSection,
		name:    "through Redis, refused",
		metrics: []metric{{name: "refused, 1", digits: 2, ratio: true}},
		offered: func(c contender) bool { return c.sharedRefuse != nil },
		measure: func(c contender) (sample, error) {
			rdb, err := s.empty()
			if err != nil {
				return sample{}, err
			}
			take, err := c.sharedRefuse(rdb)
			if err != nil {
				return sample{}, err
			}
			take() // takes the only unit
			if err := all(10, false, take); err != nil {
				return sample{}, err
			}
			var outcome tally
			ns, allocated := timed(o.Benchtime, 10, func(n int) {
				wrong := 0
				for range n {
					if take() {
						wrong++
					}
				}
				outcome.add(n, wrong)
			})
			wrong, err := outcome.share()
			return sample{[]float64{ns / 1e3}, wrong, &allocated}, err
		},
	}
}

// serverTime measures the server's time for decisions on one key.
func serverTime(o options, s *server, goroutines int) scenario {
	return scenario{
		section: "The server's time per decision, µs",
		name:    fmt.Sprintf("server time in Redis, %d goroutines", goroutines),
		metrics: []metric{
			{name: fmt.Sprintf("in the command, %d", goroutines), digits: 2, ratio: true},
			{name: fmt.Sprintf("processor, %d", goroutines), digits: 2, ratio: true},
		},
		offered: func(c contender) bool { return c.shared != nil && c.command != "" },
		measure: func(c contender) (sample, error) {
			rdb, err := s.empty()
			if err != nil {
				return sample{}, err
			}
			take, err := c.shared(rdb)
			if err != nil {
				return sample{}, err
			}
			before, err := s.usage("")
			if err != nil {
				return sample{}, err
			}
			decisions, _, _, wrong, err := drive(o.Benchtime, take, goroutines, 1)
			if err != nil {
				return sample{}, err
			}
			after, err := s.usage(c.command)
			if err != nil {
				return sample{}, err
			}
			n := float64(decisions)
			return sample{[]float64{after.command / n, (after.all - before.all) / n}, wrong, nil}, nil
		},
	}
}

// weight measures the memory of a bucket in the server.
func weight(s *server, workers int) scenario {
	column := fmt.Sprintf("used by %d", workers)
	return scenario{
		section: "Bytes in Redis per bucket",
		name:    "bytes in Redis, " + column,
		metrics: []metric{{name: column, digits: 0, ratio: true, size: true}},
		offered: func(c contender) bool { return c.keeps },
		measure: func(c contender) (sample, error) {
			rdb, err := s.empty()
			if err != nil {
				return sample{}, err
			}
			name := keyTable(1)[0]
			for range workers {
				take, err := c.shared(rdb)
				if err != nil {
					return sample{}, err
				}
				if !take(name) {
					return sample{}, fmt.Errorf("%s is refused", name)
				}
			}
			bytes, err := stored(rdb)
			return sample{Values: []float64{float64(bytes)}}, err
		},
	}
}

// stored returns the memory of all keys in a server of our own.
func stored(rdb redis.UniversalClient) (bytes int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	keys, err := rdb.Keys(ctx, "*").Result()
	if err != nil {
		return 0, err
	}
	for _, key := range keys {
		n, err := rdb.MemoryUsage(ctx, key, 0).Result()
		if err != nil {
			return 0, err
		}
		bytes += n
	}
	return bytes, nil
}

// drive makes goroutines decide about keys in random order, after each key has been
// seen once. It returns the number of decisions, including the first ones, and the
// time of one.
func drive(least time.Duration, take func(key string) bool, goroutines, keys int) (decisions int64, ns float64, a allocated, wrong float64, err error) {
	names, order := keyTable(keys), keyOrder()
	for _, name := range names {
		if !take(name) {
			return 0, 0, a, 0, fmt.Errorf("%s is refused", name)
		}
	}
	var outcome tally
	// The first turns, one of each goroutine, open the client's connections.
	ns, a = timed(least, goroutines, func(n int) {
		fan(goroutines, n, func(goroutine, n int) {
			wrong, at := 0, goroutine*len(order)/goroutines
			for i := range n {
				if !take(pick(names, order[(at+i)&(len(order)-1)])) {
					wrong++
				}
			}
			outcome.add(n, wrong)
		})
	})
	wrong, err = outcome.share()
	return outcome.all.Load() + int64(keys), ns, a, wrong, err
}
