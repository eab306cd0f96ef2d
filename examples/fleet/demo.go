package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// demo tries one way after the other.
type demo struct {
	params
	redis   *server // nil: no way needs it
	outcome outcome
}

func newDemo(ctx context.Context, p params) (*demo, error) {
	d := &demo{params: p}
	if slices.Contains(p.Modes, shared) {
		var err error
		if d.redis, err = newServer(ctx, p.redis); err != nil {
			return nil, err
		}
	}
	d.outcome = newOutcome(p, d.redis)
	return d, nil
}

func (d *demo) close() {
	if d.redis != nil {
		d.redis.close()
	}
}

// run tries the ways, and shows them.
func (d *demo) run(ctx context.Context, s *screen) error {
	s.intro(&d.outcome)
	for i, m := range d.Modes {
		if i > 0 && d.api != "" {
			if err := d.rest(ctx); err != nil {
				return err
			}
		}
		err := d.try(ctx, m, s)
		if err != nil {
			s.end(d.outcome.Modes)
			return fmt.Errorf("%s: %w", m, err)
		}
	}
	s.end(d.outcome.Modes)
	return nil
}

// try tries one way.
func (d *demo) try(ctx context.Context, m mode, s *screen) error {
	o := order{
		Mode: m, Workers: d.Workers, Waiters: d.Waiters, Rate: d.Rate, Burst: d.Burst, Seed: d.Seed, API: d.api,
		// No other fleet, and no run before, has this bucket.
		Bucket: fmt.Sprintf("fleet:%d:%d", d.Seed, time.Now().UnixNano()),
	}
	var api *ownAPI
	if d.api == "" {
		var err error
		if api, err = newAPI(&d.params); err != nil {
			return err
		}
		defer api.close()
		o.API = api.url
	}
	var redis *server
	if m == shared {
		redis, o.Redis = d.redis, d.redis.url
	}
	t := newTrial(d.params, o, api, redis)
	i := len(d.outcome.Modes)
	d.outcome.Modes = append(d.outcome.Modes, t.result())
	err := t.run(ctx, func() {
		d.outcome.Modes[i] = t.result()
		s.draw(d.outcome.Modes)
	}, s.every())
	d.outcome.Modes[i] = t.result()
	return err
}

// rest gives a shared server the time to forget the way before.
func (d *demo) rest(ctx context.Context) error {
	pause := time.Second + time.Duration(d.Burst/d.Rate*float64(time.Second))
	select {
	case <-time.After(min(pause, 10*time.Second)):
		return nil
	case <-ctx.Done():
		return errInterrupted
	}
}
