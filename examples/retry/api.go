package main

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// When the API is closed, from its first call on.
const (
	closes = 3 * time.Second
	opens  = 5 * time.Second
)

// moody is an API that fails now and then.
type moody struct {
	*outboundtest.API
	start         func() time.Time // of its first call
	calls, failed atomic.Int32
}

func newAPI() *moody {
	api := outboundtest.Stripe(outboundtest.SlidingLog(rate, time.Second))
	api.Latency = 50 * time.Millisecond
	return &moody{API: api, start: sync.OnceValue(time.Now)}
}

// RoundTrip answers a call. There are calls that the API does not even look at.
func (m *moody) RoundTrip(req *http.Request) (*http.Response, error) {
	n, now := m.calls.Add(1), time.Since(m.start())
	closed := now >= closes && now < opens
	if !closed && n%15 != 0 {
		return m.API.RoundTrip(req)
	}
	m.failed.Add(1)
	if req.Body != nil {
		_ = req.Body.Close()
	}
	w := httptest.NewRecorder()
	if w.Code = http.StatusBadGateway; closed {
		w.Code = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", strconv.Itoa(int((opens-now+time.Second-1)/time.Second)))
	}
	return w.Result(), nil
}
