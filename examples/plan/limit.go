package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// limit is a limit of the API.
type limit struct {
	n      float64       // calls
	per    time.Duration // in any time as long as this
	window bool          // as many at once as there is room for
	outbound.Limit
}

var periods = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}

// longest is the longest period of a limit. Nobody plans for longer.
const longest = 366 * 24 * time.Hour

// parseLimits returns the limits of a text such as "100/s,50000/h:window".
func parseLimits(text string) ([]limit, error) {
	var all []limit
	var bucket []outbound.Limit
	for part := range strings.SplitSeq(text, ",") {
		l, err := parseLimit(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("-limit %.40q: %w", part, err)
		}
		for _, other := range all {
			if other.Name == l.Name {
				return nil, fmt.Errorf("-limit %.40q comes twice", part)
			}
		}
		if len(all) == 8 {
			return nil, errors.New("-limit: a bucket has at most 8 limits")
		}
		all, bucket = append(all, l), append(bucket, l.Limit)
	}
	if _, err := outbound.NewBucket("plan", bucket...); err != nil {
		return nil, fmt.Errorf("-limit %.40q: %w", text, err)
	}
	return all, nil
}

func parseLimit(text string) (limit, error) {
	if len(text) > 24 {
		return limit{}, errors.New("want at most 24 characters")
	}
	rate, kind, kinded := strings.Cut(text, ":")
	if kinded && kind != "window" {
		return limit{}, fmt.Errorf("%.20q is no kind of limit, only window is", kind)
	}
	n, per, ok := strings.Cut(rate, "/")
	if !ok {
		return limit{}, errors.New("want calls per time, such as 10/s, 5000/h or 100/10s")
	}
	l := limit{window: kinded}
	var err error
	if l.n, err = strconv.ParseFloat(n, 64); err != nil || !(l.n > 0 && l.n <= 1e9) { // not so for NaN
		return limit{}, fmt.Errorf("want a number of calls above 0 and at most 1e9, not %.20q", n)
	}
	if l.per, ok = periods[per]; !ok {
		if l.per, err = time.ParseDuration(per); err != nil {
			return limit{}, fmt.Errorf("want s, m, h, d or a time such as 10s, not %.20q", per)
		}
	}
	if l.per < time.Millisecond || l.per > longest {
		return limit{}, fmt.Errorf("want a time from 1ms to 366 days, not %.20q", per)
	}
	switch {
	case !l.window:
		l.Limit = outbound.Per(l.n, l.per)
	case l.n < 1:
		return limit{}, errors.New("a window needs room for 1 call or more")
	default:
		l.Limit = outbound.Window(l.n, l.per)
	}
	l.Name = text
	return l, nil
}

// least returns how long these calls take at least if there is no other limit.
func (l limit) least(calls int) time.Duration {
	if calls < 1 {
		return 0
	}
	if l.window {
		return times(float64((calls-1)/max(1, int(l.n))), l.per)
	}
	return times(float64(calls-1)/l.LeakRate, time.Second)
}

// room returns when the limit has room for one more call after those that have left; 0: at once.
func (l limit) room(left []time.Duration) time.Duration {
	switch n := int(l.Capacity); {
	case len(left) < n:
		return 0
	case l.window:
		return left[len(left)-n] + times(l.Capacity/l.LeakRate, time.Second)
	default:
		return left[len(left)-1] + times(1/l.LeakRate, time.Second)
	}
}

// used returns the share of what the limit lets go in the time of the calls.
func (l limit) used(calls int, took time.Duration) float64 {
	return min(1, float64(calls)/(l.Capacity+l.n*took.Seconds()/l.per.Seconds()))
}

// times returns n times d, at most a hundred times the longest period, so that it cannot overflow.
func times(n float64, d time.Duration) time.Duration {
	const most = 100 * longest
	if t := n * float64(d); t < float64(most) {
		return time.Duration(t)
	}
	return most
}
