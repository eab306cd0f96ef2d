package main

import (
	"errors"
	"net/http"
)

// instant answers immediately, always with the same response. Only one goroutine may use it.
type instant struct{ response http.Response }

func newInstant() *instant {
	return &instant{http.Response{
		Status: "200 OK", StatusCode: http.StatusOK,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{},
	}}
}

func (t *instant) RoundTrip(r *http.Request) (*http.Response, error) {
	t.response.Body = http.NoBody // a wrapper may have replaced the body
	t.response.Request = r
	return &t.response, nil
}

// roundTrip measures the time that a RoundTripper adds to an instant one.
func roundTrip(o options) scenario {
	return scenario{
		section: "A RoundTripper over an instant base",
		name:    "RoundTripper",
		metrics: []metric{
			{name: "ns added", digits: 0, ratio: true},
			{name: "allocations added", digits: 1},
		},
		offered: func(c contender) bool { return c.wrap != nil },
		measure: func(c contender) (sample, error) {
			wrapped, err := c.wrap(newInstant())
			if err != nil {
				return sample{}, err
			}
			baseNS, base, _, err := calls(o, newInstant())
			if err != nil {
				return sample{}, err
			}
			ns, all, wrong, err := calls(o, wrapped)
			added := allocated{all.Objects - base.Objects, all.Bytes - base.Bytes}
			return sample{[]float64{ns - baseNS, added.Objects}, wrong, &added}, err
		},
	}
}

// calls times requests through t.
func calls(o options, t http.RoundTripper) (ns float64, a allocated, wrong float64, err error) {
	request, err := http.NewRequest(http.MethodGet, "http://api.example/v1/items", nil)
	if err != nil {
		return 0, a, 0, err
	}
	var outcome tally
	ns, a = timed(o.Benchtime, manyTurns, func(n int) {
		failed := 0
		for range n {
			response, err := t.RoundTrip(request)
			if err != nil || response.StatusCode != http.StatusOK || response.Body.Close() != nil {
				failed++
			}
		}
		outcome.add(n, failed)
	})
	if wrong, err = outcome.share(); err != nil {
		err = errors.Join(errors.New("round trips"), err)
	}
	return ns, a, wrong, err
}
