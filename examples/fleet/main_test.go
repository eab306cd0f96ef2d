package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/workers"
)

// mainEnv makes the test's binary the program, with the arguments that it gets.
const mainEnv = "DRIPFEED_FLEET_MAIN"

func TestMain(m *testing.M) {
	workers.Work(bucket)
	if os.Getenv(mainEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

// usually is for a test that a busy machine may miss for a while: it has to succeed once in a
// few times.
func usually(t *testing.T, try func() error) {
	t.Helper()
	for i := range 4 {
		err := try()
		if err == nil {
			return
		}
		if i == 3 {
			t.Fatal(err)
		}
		t.Log(err)
	}
}

// needRedis skips the test without a redis-server, or fails it where that is not allowed.
func needRedis(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("DRIPFEED_REQUIRE_REDIS") == "1" {
			t.Fatal("there is no redis-server, and DRIPFEED_REQUIRE_REDIS=1 says that it must not be missing")
		}
		t.Skip("there is no redis-server")
	}
}

// slow is so slow a fleet that a call may be 135 ms late before the next one comes too early after
// it for the strict API, and that 9 of 9.8 calls can be made with a whole call's time to spare.
var slow = workers.Fleet{Workers: 3, Waiters: 2, Rate: 2, Burst: 1, Seconds: 4.4}

// try tries one way with a server.
func try(t *testing.T, f workers.Fleet, url, way string) (r *workers.Result, what string) {
	t.Helper()
	var s server
	if way == "shared" {
		var err error
		if s, err = newServer(t.Context(), url); err != nil {
			t.Fatal(err)
		}
		defer s.end()
	}
	results, err := f.TryAll(t.Context(), io.Discard, workers.Order{Store: s.url}, way)
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	return results[0], s.what
}

// keepsTheLimit is what the shared way promises.
func keepsTheLimit(t *testing.T, redis string) error {
	t.Helper()
	r, what := try(t, slow, "", "shared")
	if !strings.HasPrefix(what, redis) {
		t.Fatalf("it uses %s", what)
	}
	if r.Refused > 0 || r.Used() < 0.8 || r.Used() > 1.01 || r.Jain() < 0.8 {
		return fmt.Errorf("%d refused, %.3f of the quota used, fairness %.2f; %s", r.Refused, r.Used(), r.Jain(), r.Said)
	}
	return nil
}

func TestShared_UsesTheLimitThroughRedis(t *testing.T) {
	needRedis(t)
	usually(t, func() error { return keepsTheLimit(t, "a redis-server of its own, version ") })
}

func TestShared_UsesTheLimitThroughMiniredis(t *testing.T) {
	t.Setenv("PATH", "")
	usually(t, func() error { return keepsTheLimit(t, "an embedded miniredis") })
}

// The program uses a server that another demo has started.
func TestShared_UsesTheGivenServer(t *testing.T) {
	needRedis(t)
	s, err := newServer(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.end()
	usually(t, func() error {
		r, what := try(t, workers.Fleet{Workers: 1, Waiters: 2, Rate: 20, Burst: 1, Seconds: 1}, s.url, "shared")
		if !strings.HasPrefix(what, "the server of -redis, version ") {
			t.Errorf("it uses %s", what)
		}
		if r.Answered == 0 {
			return errors.New(r.Said)
		}
		return nil
	})
}

func TestUnpaced_TheAPIRefuses(t *testing.T) {
	usually(t, func() error {
		r, _ := try(t, workers.Fleet{Workers: 3, Waiters: 2, Rate: 10, Burst: 1, Seconds: 2}, "", "none")
		if r.Refused == 0 || r.Used() > 1.1 {
			return fmt.Errorf("%d refused, %.3f of the quota used", r.Refused, r.Used())
		}
		return nil
	})
}

func TestShares_NeedNoRedis(t *testing.T) {
	t.Setenv("PATH", "")
	r, what := try(t, workers.Fleet{Workers: 2, Waiters: 1, Rate: 40, Burst: 4, Seconds: 1}, "", "share")
	if r.Answered < 4 || r.Used() > 1.05 || what != "" {
		t.Errorf("%d answered, %.3f of the quota used, %s", r.Answered, r.Used(), what)
	}
}

func TestWorkers_KilledOnesAreReplaced(t *testing.T) {
	t.Setenv("PATH", "")
	usually(t, func() error {
		f := slow
		f.Kill = 2
		r, _ := try(t, f, "", "shared")
		// Each costs at most the calls that it had reserved.
		if r.Used() < 0.5 || r.Refused > 0 {
			return fmt.Errorf("%d refused, %.3f of the quota used; %s", r.Refused, r.Used(), r.Said)
		}
		return nil
	})
}

func TestWorkers_EndIsAnError(t *testing.T) {
	_, err := slow.TryAll(t.Context(), io.Discard, workers.Order{Store: "no URL"}, "shared")
	if err == nil || !strings.Contains(err.Error(), "has ended: ") || !strings.Contains(err.Error(), errNoURL.Error()) {
		t.Errorf("the error is %v", err)
	}
}

func TestInterrupt_EndsTheProgramWithTheTable(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, stderr bytes.Buffer
	seen := writer(func(p []byte) (int, error) {
		if bytes.Contains(p, []byte(" 1 s  none")) {
			cancel()
		}
		return out.Write(p)
	})
	status := example.Exec(ctx, []string{"-mode", "none", "-workers", "2", "-seconds", "600"}, seen, &stderr)
	if status != 1 || !strings.Contains(stderr.String(), "none: interrupted") {
		t.Errorf("status %d: %s", status, &stderr)
	}
	if !strings.Contains(out.String(), "quota answered refused") {
		t.Errorf("the table is missing:\n%s", &out)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestArguments_AreChecked(t *testing.T) {
	server := httptest.NewServer(nil) // it does not speak Redis
	defer server.Close()
	for _, c := range []struct {
		args string
		says string
	}{
		{"-workers 0", "want a number from 1 to 1000"},
		{"-rate NaN", "want a number from 0.01 to 10000"},
		{"-kill 1.5", "want a number from 0 to 1000"},
		{"-mode some", `-mode needs none, share or shared, not "some"`},
		{"-redis localhost:6379", "redis://localhost:6379"},
		{"-redis redis://:secret@exa|mple.com", "redis://localhost:6379"},
		{"-redis redis://:secret@" + server.Listener.Addr().String(), "-redis: "},
	} {
		var out, stderr bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		status := example.Exec(ctx, strings.Fields(c.args), &out, &stderr)
		cancel()
		if status != 2 || !strings.Contains(stderr.String(), c.says) || strings.Contains(stderr.String(), "secret") {
			t.Errorf("%s: status %d, want 2 and %q:\n%s", c.args, status, c.says, &stderr)
		}
		if out.Len() > 0 {
			t.Errorf("%s: printed %q", c.args, &out)
		}
	}
}
