package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/redis/go-redis/v9"
)

// mode is a way in which the workers keep to the limit.
type mode string

const (
	none   mode = "none"
	share  mode = "share"
	shared mode = "shared"
)

var allModes = []mode{none, share, shared}

// params is what the flags say. The JSON leaves out what may carry a password.
type params struct {
	Workers int     `json:"workers"`
	Waiters int     `json:"waiters"`
	Rate    float64 `json:"rate"`
	Burst   float64 `json:"burst"`
	Seconds float64 `json:"seconds"`
	Kill    int     `json:"kill"`
	Modes   []mode  `json:"modes"`
	Seed    uint64  `json:"seed"`

	strict           bool
	api, redis, json string
}

// limit is the limit that the fleet keeps to.
func (p *params) limit() outbound.Limit {
	return outbound.Limit{Capacity: p.Burst, LeakRate: p.Rate}
}

// apiCapacity is the capacity of the strict API's bucket. It is a little above ours: calls
// that leave on time may arrive early or late, by scheduling and the network, and a bucket of
// just one call refuses evenly spaced calls, too.
func (p *params) apiCapacity() float64 { return p.Burst + p.Rate*0.010 + 0.25 }

func (p *params) duration() time.Duration { return time.Duration(p.Seconds * float64(time.Second)) }

// summary says what the program shows, in a line.
const summary = "Worker processes call one API, in three ways."

const usage = summary + `

	go run ./examples/fleet [flags]

  none    nobody paces; what is refused is tried again,
          after its Retry-After and a random pause
  share   each worker keeps to 1/N of the limit, in memory
  shared  all keep to one limit: a bucket in Redis, a queue

The limit: outbound.Limit{Capacity: burst, LeakRate: rate}
Without -api a strict API is called, a leaky bucket with
capacity burst + rate * 10 ms + 0.25 that leaks rate per
second, and refuses what does not fit with 429.

`

// arguments returns what the flags say, checked.
func arguments(args []string, stderr io.Writer) (p params, err error) {
	var only string
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	flags.IntVar(&p.Workers, "workers", 10, "`N`, 1 to 1000: worker processes")
	flags.IntVar(&p.Waiters, "waiters", 2, "`N`, 1 to 1000: callers of each worker")
	flags.Float64Var(&p.Rate, "rate", 50, "`N`, 0.01 to 100000: calls per second")
	flags.Float64Var(&p.Burst, "burst", 1, "`N`, 1 to 1000000: calls at once")
	flags.Float64Var(&p.Seconds, "seconds", 10, "`N`, 0.5 to 86400: how long a way takes")
	flags.IntVar(&p.Kill, "kill", 0, "`N`, 0 to 10000: in each way, kill a worker (kill -9)\nand start it anew, so many times")
	flags.StringVar(&only, "mode", "", "the `way`: none, share, shared or all; by default\nall, but shared with -api")
	flags.StringVar(&p.redis, "redis", "", "use the server at this `URL`, redis://localhost:6379\nor so; else one is started, or a miniredis")
	flags.StringVar(&p.api, "api", "", "call this `URL` instead of the strict API")
	flags.StringVar(&p.json, "json", "", "write the result to this `file`; - is standard\noutput, and the table goes to standard error")
	flags.Uint64Var(&p.Seed, "seed", 0, "`N`: choose at random as the run with this seed")
	flags.BoolVar(&p.strict, "strict", false, "exit with status 1 if a call has failed, or if one\nof the shared way was refused")
	if err := flags.Parse(args); err != nil {
		return p, err
	}
	if flags.NArg() > 0 {
		return p, fmt.Errorf("%q is one argument too many", flags.Arg(0))
	}
	for p.Seed == 0 {
		p.Seed = uint64(rand.Uint32())
	}
	if p.Modes, err = modes(only, p.api != ""); err != nil {
		return p, err
	}
	return p, p.check()
}

func modes(only string, foreign bool) ([]mode, error) {
	switch {
	case only == "" && foreign:
		return []mode{shared}, nil
	case only == "" || only == "all":
		return allModes, nil
	}
	for _, m := range allModes {
		if only == string(m) {
			return []mode{m}, nil
		}
	}
	return nil, fmt.Errorf("-mode needs all, none, share or shared, not %q", only)
}

func (p *params) check() error {
	for _, n := range []struct {
		flag             string
		is, least, large float64
	}{
		{"-workers", float64(p.Workers), 1, 1000},
		{"-waiters", float64(p.Waiters), 1, 1000},
		{"-rate", p.Rate, 0.01, 100_000},
		{"-burst", p.Burst, 1, 1_000_000},
		{"-seconds", p.Seconds, 0.5, 86_400},
		{"-kill", float64(p.Kill), 0, 10_000},
	} {
		if !(n.is >= n.least && n.is <= n.large) { // not so for NaN
			return fmt.Errorf("%s needs a number from %v to %.0f, not %v", n.flag, n.least, n.large, n.is)
		}
	}
	// The URLs may carry a password or a token, so no error shows them.
	if p.api != "" {
		if u, err := url.Parse(p.api); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
			return errors.New("-api needs a URL such as http://localhost:8080/")
		}
	}
	if p.redis != "" {
		if _, err := redis.ParseURL(p.redis); err != nil {
			return errors.New("-redis needs a URL such as redis://localhost:6379")
		}
	}
	return nil
}
