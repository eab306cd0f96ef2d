package main

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
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

	mu      sync.Mutex // protects the fields below
	start   time.Time
	calls   int
	refused int // by 429
	failed  int // by 502 and 503
}

func newAPI(n float64) *moody {
	api := outboundtest.Stripe(outboundtest.SlidingLog(n, time.Second))
	api.Latency = 50 * time.Millisecond
	return &moody{API: api}
}

func (m *moody) RoundTrip(req *http.Request) (*http.Response, error) {
	if resp := m.mood(req); resp != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return resp, nil
	}
	resp, err := m.API.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusTooManyRequests {
		m.mu.Lock()
		m.refused++
		m.mu.Unlock()
	}
	return resp, err
}

// mood returns the answer to a call that the API does not even look at, or nil.
func (m *moody) mood(req *http.Request) *http.Response {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.start.IsZero() {
		m.start = time.Now()
	}
	m.calls++
	header := http.Header{}
	status := http.StatusBadGateway
	switch now := time.Since(m.start); {
	case now >= closes && now < opens:
		status = http.StatusServiceUnavailable
		header.Set("Retry-After", strconv.Itoa(int((opens-now+time.Second-1)/time.Second)))
	case m.calls%15 != 0:
		return nil
	}
	m.failed++
	return &http.Response{
		StatusCode: status,
		Header:     header,
		Body:       io.NopCloser(strings.NewReader(http.StatusText(status))),
		Request:    req,
	}
}

// counts returns how many calls have come, and how many of them the API refused and failed.
func (m *moody) counts() (calls, refused, failed int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls, m.refused, m.failed
}
