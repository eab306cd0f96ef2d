package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// mainEnv turns the test's own binary into the program, with the arguments that it gets.
const mainEnv = "DRIPFEED_FLEET_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" || os.Getenv(mainEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

// runs runs the program with the arguments, and returns its JSON, the text of its screen, and
// its status.
func runs(t *testing.T, args ...string) (o outcome, text string, status int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "result.json")
	var out, stderr bytes.Buffer
	status = run(t.Context(), append(args, "-json", file), &out, &stderr)
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("no result: %v\n%s%s", err, &out, &stderr)
	}
	if err := json.Unmarshal(written, &o); err != nil {
		t.Fatalf("%v:\n%s", err, written)
	}
	return o, out.String() + stderr.String(), status
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

// longer is for a test that a busy machine may not finish in a short time: it gets more and
// more of it.
func longer(t *testing.T, try func(seconds string) error) {
	t.Helper()
	var err error
	for _, seconds := range []string{"0.5", "2", "8", "30"} {
		if err = try(seconds); err == nil {
			return
		}
		t.Log(err)
	}
	t.Fatal(err)
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

// keepsTheLimit is what the shared way promises. The rate is so low that a call may be 135 ms
// late before the next one comes too early after it for the strict API, and that 9 of 9.8
// calls can be made with a whole call's time to spare.
func keepsTheLimit(t *testing.T, redis string, args ...string) error {
	t.Helper()
	o, text, status := runs(t, append(args, "-mode", "shared", "-workers", "3", "-rate", "2", "-seconds", "4.4")...)
	if len(o.Modes) != 1 || o.Modes[0].Mode != shared || !strings.Contains(o.Redis, redis) || !strings.Contains(text, "Redis: "+o.Redis) {
		t.Fatalf("%+v\n%s", o, text)
	}
	r := o.Modes[0]
	if r.Failed > 0 { // the server has not answered within a second
		return fmt.Errorf("%d calls have failed\n%s", r.Failed, text)
	}
	if r.Answered != *r.Admitted || r.Refused != *r.Rejected {
		t.Fatalf("the workers and the API have counted differently: %+v\n%s", r, text)
	}
	if r.CountedBy == "" || r.PerCall <= 0 || r.WaitP50 <= 0 || r.WaitP99 < r.WaitP50 {
		t.Fatalf("it has not been measured: %+v\n%s", r, text)
	}
	if len(r.Workers) != 3 {
		t.Fatalf("%d workers", len(r.Workers))
	}
	for _, w := range r.Workers {
		if w.Answered == 0 {
			return fmt.Errorf("%s got nothing\n%s", w.Name, text)
		}
	}
	if r.Refused > 0 || r.Used < 0.8 || r.Used > 1.01 || status != 0 {
		return fmt.Errorf("status %d, %d refused, %.3f of the quota used\n%s", status, r.Refused, r.Used, text)
	}
	return nil
}

func TestSharedKeepsToTheLimitAndUsesItByARedisServer(t *testing.T) {
	needRedis(t)
	usually(t, func() error { return keepsTheLimit(t, "a redis-server of its own, version ") })
}

func TestSharedKeepsToTheLimitAndUsesItByAnEmbeddedMiniredis(t *testing.T) {
	t.Setenv("PATH", "")
	usually(t, func() error { return keepsTheLimit(t, "an embedded miniredis v") })
}

// The program uses a server that another demo has started.
func TestSharedUsesTheServerThatItIsGiven(t *testing.T) {
	needRedis(t)
	s, err := newServer(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	o, text, _ := runs(t, "-mode", "shared", "-workers", "1", "-rate", "20", "-seconds", "1", "-redis", s.url)
	if !strings.HasPrefix(o.Redis, "the server of -redis, version ") || o.Modes[0].Answered == 0 {
		t.Errorf("%+v\n%s", o, text)
	}
	if n, ok := s.commands(t.Context()); !ok || n != o.Modes[0].Commands || o.Modes[0].CountedBy != "server" {
		t.Errorf("it has run %d scripts, the result says %+v", n, o.Modes[0])
	}
}

func TestWithoutPacingTheAPIRefuses(t *testing.T) {
	o, text, status := runs(t, "-mode", "none", "-workers", "3", "-rate", "10", "-seconds", "2")
	if len(o.Modes) != 1 || o.Redis != "" || status != 0 {
		t.Fatalf("status %d, %+v\n%s", status, o, text)
	}
	r := o.Modes[0]
	if r.Refused == 0 || r.Answered == 0 || r.Used > 1.1 {
		t.Errorf("%+v", r)
	}
	if r.Answered != *r.Admitted || r.Refused != *r.Rejected || r.CountedBy != "" {
		t.Errorf("wrongly counted: %+v", r)
	}
}

func TestWithTheirOwnSharesWorkersNeedNoRedis(t *testing.T) {
	t.Setenv("PATH", "")
	o, text, status := runs(t, "-mode", "share", "-workers", "2", "-waiters", "1", "-rate", "40", "-burst", "4", "-seconds", "1")
	if len(o.Modes) != 1 || o.Redis != "" || status != 0 {
		t.Fatalf("status %d, %+v\n%s", status, o, text)
	}
	r := o.Modes[0]
	if r.Answered != *r.Admitted || r.Answered < 4 || r.CountedBy != "" {
		t.Errorf("%+v", r)
	}
	// Each worker makes 2 calls at once and 20 per second, and some more while the order to
	// stop is on its way.
	for _, w := range r.Workers {
		if float64(w.Answered) > 2+20*r.Seconds+3 {
			t.Errorf("%s got %d calls, more than its share", w.Name, w.Answered)
		}
	}
}

func TestKilledWorkersAreReplacedAndTheOthersGoOn(t *testing.T) {
	usually(t, func() error {
		o, text, status := runs(t, "-mode", "shared", "-workers", "3", "-rate", "2", "-seconds", "4.4", "-kill", "2", "-seed", "7")
		r := o.Modes[0]
		if len(r.Kills) > 2 || o.Parameters.Seed != 7 {
			t.Fatalf("killed: %+v\n%s", r.Kills, text)
		}
		killed := 0
		for _, w := range r.Workers {
			killed += w.Killed
		}
		if killed != len(r.Kills) {
			t.Fatalf("%+v\n%s", r, text)
		}
		if killed < 2 || r.Failed > 0 { // the time was over, or the server has not answered within a second
			return fmt.Errorf("%d killed, %d calls have failed\n%s", killed, r.Failed, text)
		}
		// Each costs at most the calls that it had booked places for.
		if r.Used < 0.5 || r.Refused > 0 || status != 0 {
			return fmt.Errorf("status %d, %d refused, %.3f of the quota used\n%s", status, r.Refused, r.Used, text)
		}
		return nil
	})
}

// names is a server that refuses every third call, and counts them by worker.
type names struct {
	mu      sync.Mutex
	n       int
	refused int
	by      map[string]int
}

func (s *names) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	if s.n%3 == 0 {
		s.refused++
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	s.by[r.Header.Get("X-Worker")]++
}

func TestServerOfOnesOwnIsCalledAndIts429sAreCounted(t *testing.T) {
	longer(t, func(seconds string) error {
		api := &names{by: make(map[string]int)}
		server := httptest.NewServer(api)
		defer server.Close()
		o, text, status := runs(t, "-api", server.URL, "-mode", "none", "-workers", "2", "-seconds", seconds)
		r := o.Modes[0]
		if status != 0 || r.Refused != api.refused || r.Admitted != nil || o.API != "the server of -api" {
			t.Errorf("status %d, %d refused, want %d\n%s", status, r.Refused, api.refused, text)
		}
		for _, w := range r.Workers {
			if w.Answered != api.by[w.Name] {
				t.Errorf("%s got %d calls, the server says %v", w.Name, w.Answered, api.by)
			}
		}
		if len(api.by) != 2 || r.Refused == 0 {
			return fmt.Errorf("the server has heard of %v and refused %d", api.by, r.Refused)
		}
		return nil
	})
}

func TestWhatCannotBeReachedFailsAndIsReported(t *testing.T) {
	server := httptest.NewServer(nil)
	server.Close() // now nobody listens there
	longer(t, func(seconds string) error {
		o, text, status := runs(t, "-api", server.URL+"/?token=secret", "-mode", "none", "-workers", "1", "-seconds", seconds)
		if strings.Contains(text, "secret") || strings.Contains(o.Modes[0].Error, "secret") {
			t.Errorf("the token is shown:\n%s", text)
		}
		if status != 1 || o.Modes[0].Failed == 0 || !strings.Contains(text, "calls have failed, the first with: ") || !strings.Contains(text, "not one call was answered") {
			return fmt.Errorf("status %d\n%s", status, text)
		}
		return nil
	})
}

func TestRefusedCallOfTheSharedWayIsARemark(t *testing.T) {
	t.Setenv("PATH", "")
	api := &names{by: make(map[string]int)}
	server := httptest.NewServer(api)
	defer server.Close()
	for _, c := range []struct {
		args   []string
		status int
	}{{nil, 0}, {[]string{"-strict"}, 1}} {
		// Without -mode the program calls a server of others in the shared way only.
		longer(t, func(seconds string) error {
			o, text, status := runs(t, append(c.args, "-api", server.URL, "-workers", "1", "-seconds", seconds)...)
			if status != c.status || len(o.Modes) != 1 || o.Modes[0].Mode != shared || !strings.Contains(text, "shared: the API has refused ") {
				return fmt.Errorf("%q: status %d, want %d\n%s", c.args, status, c.status, text)
			}
			return nil
		})
	}
}

func TestRedisThatDoesNotAnswerIsAnError(t *testing.T) {
	server := httptest.NewServer(nil)
	defer server.Close() // it does not speak Redis
	var out, stderr bytes.Buffer
	url := "redis://:secret@" + server.Listener.Addr().String()
	if status := run(t.Context(), []string{"-mode", "shared", "-redis", url}, &out, &stderr); status != 2 {
		t.Errorf("status %d", status)
	}
	if !strings.Contains(stderr.String(), "redis does not answer") || strings.Contains(stderr.String(), "secret") {
		t.Errorf("it says %s", &stderr)
	}
}

func TestInterruptEndsItAtOnceWithTheTable(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, stderr bytes.Buffer
	seen := &watcher{w: &out, text: " 1 s  none", then: cancel}
	status := run(ctx, []string{"-mode", "none", "-workers", "2", "-seconds", "600"}, seen, &stderr)
	if status != 1 || !strings.Contains(stderr.String(), "none: interrupted") {
		t.Errorf("status %d: %s", status, &stderr)
	}
	if !strings.Contains(out.String(), "quota answered refused") {
		t.Errorf("the table is missing:\n%s", &out)
	}
}

// watcher calls a function when a text is written.
type watcher struct {
	w    *bytes.Buffer
	text string
	then func()
}

func (s *watcher) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(s.text)) {
		s.then()
	}
	return s.w.Write(p)
}

func TestWorkerThatEndsByItselfIsAnError(t *testing.T) {
	p := params{Workers: 1, Waiters: 1, Rate: 10, Burst: 1, Seconds: 1}
	o := order{Mode: shared, Workers: 1, Waiters: 1, Rate: 10, Burst: 1, Redis: "no URL"}
	err := newTrial(p, o, nil, nil).run(t.Context(), func() {}, time.Second)
	if err == nil || !strings.Contains(err.Error(), "worker-1 has ended: "+errNoURL.Error()) {
		t.Errorf("the error is %v", err)
	}
}
