package main

import (
	"io"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
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

// slow is so slow a fleet that a call may be 135 ms late before the next one comes too early after
// it for the strict API, and that 9 of 9.8 calls can be made with a whole call's time to spare.
var slow = workers.Fleet{Workers: 3, Waiters: 2, Rate: 2, Burst: 1, Seconds: 4.4}

// killing is slow with two workers that are killed. Each costs at most the calls that it had
// reserved.
var killing = workers.Fleet{Workers: 3, Waiters: 2, Rate: 2, Burst: 1, Seconds: 4.4, Kill: 2}

// Workers with a shared bucket use the quota, and the API refuses none of their calls, with each
// kind of server. The API refuses calls of unpaced workers. Workers with shares need no server.
func TestWorkers_UseTheQuota(t *testing.T) {
	for name, c := range map[string]struct {
		way, redis         string
		fleet              workers.Fleet
		refused            [2]int  // calls of the workers, at least and at most
		least, most, equal float64 // of the quota, and Jain's index
	}{
		"redis-server":       {"shared", "a redis-server of its own, version ", slow, [2]int{}, 0.8, 1.01, 0.8},
		"miniredis":          {"shared", "an embedded miniredis", killing, [2]int{}, 0.5, 1.01, 0},
		"server of the user": {"shared", "the server of -redis, version ", workers.Fleet{Workers: 1, Waiters: 2, Rate: 20, Burst: 1, Seconds: 1}, [2]int{0, 1000}, 0.01, 1.2, 0},
		"unpaced":            {"none", "", workers.Fleet{Workers: 3, Waiters: 2, Rate: 10, Burst: 1, Seconds: 2}, [2]int{1, 1000}, 0, 1.1, 0},
		"shares":             {"share", "", workers.Fleet{Workers: 2, Waiters: 1, Rate: 40, Burst: 4, Seconds: 1}, [2]int{0, 1000}, 0.05, 1.05, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.Contains(c.redis, "version") {
				exampletest.Program(t, "REDIS", "redis-server")
			} else {
				t.Setenv("PATH", "")
			}
			var s server
			start := func(url string) {
				var err error
				if s, err = newServer(t.Context(), url); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(s.end)
			}
			if c.way == "shared" {
				start("")
			}
			if strings.HasPrefix(c.redis, "the server") {
				start(s.url)
			}
			if !strings.HasPrefix(s.what, c.redis) {
				t.Fatalf("it uses %s", s.what)
			}
			for i := range 4 { // a busy machine may miss it for a while
				results := exampletest.Must(c.fleet.TryAll(t.Context(), io.Discard, workers.Order{Store: s.url}, c.way))
				r := results[0]
				if r.Refused >= c.refused[0] && r.Refused <= c.refused[1] && r.Used() >= c.least && r.Used() <= c.most && r.Jain() >= c.equal {
					return
				}
				if i == 3 {
					t.Errorf("%d refused, %.3f of the quota used, fairness %.2f; %s", r.Refused, r.Used(), r.Jain(), r.Said)
				}
			}
		})
	}
}

// The end of a worker is an error with the worker's reason.
func TestWorkers_EndIsAnError(t *testing.T) {
	_, err := slow.TryAll(t.Context(), io.Discard, workers.Order{Store: "no URL"}, "shared")
	if err == nil || !strings.Contains(err.Error(), "has ended: ") || !strings.Contains(err.Error(), errNoURL.Error()) {
		t.Errorf("the error is %v", err)
	}
}

// Wrong arguments are refused, and no password is shown.
func TestArguments_AreChecked(t *testing.T) {
	server := httptest.NewServer(nil) // it does not speak Redis
	defer server.Close()
	exampletest.RefusesArguments(t, &example, map[string]string{
		"-workers 0":                          "want a number from 1 to 1000",
		"-kill 1.5":                           "want a number from 0 to 1000",
		"-mode some":                          `-mode needs none, share or shared, not "some"`,
		"-redis localhost:6379":               "redis://localhost:6379",
		"-redis redis://:secret@exa|mple.com": "redis://localhost:6379",
		"-redis redis://:secret@" + server.Listener.Addr().String(): "-redis: ",
	})
}

// A program that is ended leaves nothing running, and prints its table unless it is killed.
func TestProgram_LeavesNothingRunning(t *testing.T) {
	exampletest.Program(t, "REDIS", "redis-server")
	for how, want := range map[syscall.Signal]int{syscall.SIGINT: 1, syscall.SIGTERM: 1, syscall.SIGKILL: -1} {
		t.Run(how.String(), func(t *testing.T) {
			args := []string{"-mode", "shared", "-workers", "2", "-seconds", "600"}
			out, status := exampletest.End(t, mainEnv, args, " s  shared", func(program *os.Process, children []int) {
				if len(children) != 3 {
					t.Errorf("it has %d children, want 2 workers and a redis-server", len(children))
				}
				exampletest.NoError(t, program.Signal(how))
			})
			shown := strings.Contains(out, "quota answered refused") && strings.Contains(out, "shared: interrupted")
			if status != want || shown != (want == 1) {
				t.Errorf("status %d, want %d:\n%s", status, want, out)
			}
		})
	}
}
