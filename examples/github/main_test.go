package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// Another program breaks the limit on points. At most one call of each worker is refused, and all
// workers wait.
func TestProgram_RefusalHoldsAllWorkers(t *testing.T) {
	exampletest.InVirtualTime(t, func(t *testing.T) {
		var out bytes.Buffer
		task := demo(newAPI())
		go task.disturb(t.Context())
		err := task.run(t.Context(), &out)
		if err != nil || !regexp.MustCompile(`[01]\.\d s  worker \d hears that core has to wait 1s`).Match(out.Bytes()) {
			t.Errorf("%v\n%s", err, &out)
		}
		if task.refused.Load() == 0 || task.refused.Load() > 4 {
			t.Errorf("%d calls were refused, want one for each worker at most", task.refused.Load())
		}
		if took := time.Since(exampletest.Begin); took < 5*time.Second || took > 12*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// theReal is the task for the real API, over an API that has GitHub's own rules.
func theReal(calls, searches int32) *task {
	task := real("secret")
	api := outboundtest.GitHub()
	api.Latency = 100 * time.Millisecond
	task.base, task.url, task.calls, task.searches = api, issues, calls, searches
	return task
}

// The API refuses no call without another program. 300 calls take 21 s by GitHub's own rules; with
// outbound.PerHour(5_000) they took 215 s. An interrupt ends the workers.
func TestProgram_UndisturbedHasNoRefusal(t *testing.T) {
	for most, task := range map[time.Duration]*task{12 * time.Second: demo(newAPI()), 25 * time.Second: theReal(300, 0)} {
		exampletest.InVirtualTime(t, func(t *testing.T) {
			want := task.calls + task.searches
			err := task.run(t.Context(), io.Discard)
			if took := time.Since(exampletest.Begin); err != nil || task.refused.Load() > 0 || task.made.Load() != want || took > most {
				t.Errorf("%d calls made and %d refused in %v, want %d in %v: %v", task.made.Load(), task.refused.Load(), took, want, most, err)
			}
		})
	}
	exampletest.Interrupt(t, time.Second, demo(newAPI()).run)
}

// mute removes the headers with the quota from the answers.
type mute struct{ http.RoundTripper }

func (m mute) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := m.RoundTripper.RoundTrip(req)
	if err == nil {
		for _, name := range []string{"Limit", "Remaining", "Used", "Reset"} {
			resp.Header.Del("X-RateLimit-" + name)
		}
	}
	return resp, err
}

// After 5 000 calls in six minutes the next one waits until the hour is over, and 10 100 take two
// hours: all of the quota is used, with and without the answers' headers. The calls in the last part
// of the window before a hold, a 64th, are freed late by the time of the hold.
func TestProgram_UsesAllOfAnHour(t *testing.T) {
	for _, silent := range []bool{false, true} {
		exampletest.InVirtualTime(t, func(t *testing.T) {
			task, inSecond := theReal(10_100, 0), 10_000
			if silent {
				task.base = mute{task.base}
			} else {
				inSecond -= 860 * 60 / 64 // in a 64th of an hour
			}
			check := func(least, most int) func() {
				return func() {
					if made := int(task.made.Load()); made < least || made > most+4 { // each worker has one in progress
						t.Errorf("silent %v: %d calls made after %v, want %d", silent, made, time.Since(exampletest.Begin), most)
					}
				}
			}
			time.AfterFunc(15*time.Minute, check(5_000, 5_000))
			time.AfterFunc(75*time.Minute, check(inSecond, 10_000))
			err := task.run(t.Context(), io.Discard)
			// A 64th of each window, and 100 calls.
			if took := time.Since(exampletest.Begin); err != nil || task.refused.Load() > 0 || took < 2*time.Hour || took > 2*time.Hour+150*time.Second {
				t.Errorf("silent %v: %d refused in %v, %v", silent, task.refused.Load(), took, err)
			}
		})
	}
}

// When no search is left, only the searches wait.
func TestProgram_SearchDelaysNoCall(t *testing.T) {
	exampletest.InVirtualTime(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		task := theReal(300, 40) // GitHub allows 30 searches in a minute
		err := task.run(ctx, io.Discard)
		if !errors.Is(err, context.DeadlineExceeded) || task.calls >= 0 || task.searches != 9 || task.refused.Load() > 0 {
			t.Errorf("%d calls and %d searches are left, want 0 and 9, and one that has begun; %d refused, %v", task.calls, task.searches, task.refused.Load(), err)
		}
	})
}

// With -real the token goes to GitHub, and is never printed.
func TestReal_TokenIsSentAndNeverPrinted(t *testing.T) {
	exampletest.KeepsSecret(t, "https://api.github.com/rate_limit", "Authorization", "Bearer secret", func(ctx context.Context, api http.RoundTripper, out io.Writer) error {
		task := real("secret")
		task.base, task.calls = api, 1
		return task.run(ctx, out)
	})
}
