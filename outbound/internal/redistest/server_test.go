package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// need skips a test that needs a real server.
func need(t *testing.T) {
	t.Helper()
	if _, err := find(); err != nil {
		lack(t, err.Error())
	}
}

// gone reports whether no process has this id, or only a zombie.
func gone(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	var id int
	var name, state string
	if _, err := fmt.Sscan(string(stat), &id, &name, &state); err != nil {
		return false
	}
	return state == "Z"
}

// A server serves this machine only, with the arguments of its test, and ends with the test.
func TestServer_EndsWithItsTest(t *testing.T) {
	need(t)
	var pid int
	var dir string
	t.Run("test", func(t *testing.T) {
		s := Start(t, "--maxmemory", "12mb")
		pid, dir = s.Pid(), s.dir
		for name, want := range map[string]string{"maxmemory": "12582912", "bind": "127.0.0.1", "save": "", "appendonly": "no"} {
			got, err := s.Client(t).ConfigGet(t.Context(), name).Result()
			require.NoError(t, err)
			require.Equal(t, map[string]string{name: want}, got)
		}
		require.False(t, gone(pid))
	})
	require.True(t, gone(pid))
	require.NoDirExists(t, dir)
}

// The sentinels and the nodes that know a killed server go on asking at its port. It is empty when it
// starts again.
func TestServer_KeepsItsPortWhenKilled(t *testing.T) {
	need(t)
	var port int
	t.Run("test", func(t *testing.T) {
		s := Start(t)
		port = s.Port()
		require.NoError(t, s.Client(t).Set(t.Context(), "k", "v", 0).Err())
		s.Kill(t)
		_, err := hold(port)
		require.Error(t, err)
		s.Restart(t)
		require.Equal(t, port, s.Port())
		require.ErrorIs(t, s.Client(t).Get(t.Context(), "k").Err(), redis.Nil)
	})
	held, err := hold(port)
	require.NoError(t, err)
	require.NoError(t, held.Close())
}

// Two binaries may look for a free port at the same time, and one of them is late.
func TestServer_TakesAnotherPortIfItsIsTaken(t *testing.T) {
	need(t)
	first := Start(t)
	dir, err := room()
	require.NoError(t, err)
	late := &Server{config: first.config, dir: dir, port: first.port}
	t.Cleanup(late.end)
	require.ErrorIs(t, late.launch(), errTaken)
}

// outcome is a testing.TB that records how it ended, instead of ending.
type outcome struct {
	testing.TB
	failed string
}

func (o *outcome) Helper() {}

func (o *outcome) Fatal(args ...any) {
	o.failed = fmt.Sprint(args...)
	runtime.Goexit()
}

// All tests share one server, and none of them can break it.
func TestShared_AllowsNoFaults(t *testing.T) {
	need(t)
	s := Shared(t)
	for name, f := range map[string]func(testing.TB){
		"stop": s.Stop, "continue": s.Cont, "kill": s.Kill, "restart": s.Restart,
		"config": func(t testing.TB) { s.Config(t, "maxmemory", "1mb") },
	} {
		o := &outcome{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			f(o)
		}()
		<-done
		require.Contains(t, o.failed, "serves other tests", name)
	}
	require.NoError(t, s.Client(t).Ping(t.Context()).Err())
	require.Same(t, s, Shared(t))
}

// The package imports libraries for tests, which do not belong in users'
// binaries.
func TestPackage_IsImportedByTestsOnly(t *testing.T) {
	cmd := exec.Command("go", "list", "-f", "{{.ImportPath}}{{range .Imports}} {{.}}{{end}}", "./...")
	cmd.Dir = "../../.."
	out, err := cmd.Output()
	require.NoError(t, err)
	packages := 0
	for line := range strings.Lines(string(out)) {
		path, imports, _ := strings.Cut(strings.TrimSpace(line), " ")
		require.NotContains(t, imports, "/internal/redistest", path)
		packages++
	}
	require.Greater(t, packages, 5)
}

// The clock of one server moves both ways, and stays through a restart. Other servers have the
// machine's.
func TestClock_MovesBothWays(t *testing.T) {
	need(t)
	s := StartWithClock(t)
	client := s.Client(t)
	ahead := func() time.Duration {
		return time.Until(client.Time(t.Context()).Val())
	}
	near := func(want, have time.Duration) {
		t.Helper()
		require.InDelta(t, want.Seconds(), have.Seconds(), 60)
	}
	near(0, ahead())
	require.NoError(t, client.Set(t.Context(), "minute", "v", time.Minute).Err())

	s.SetClock(t, time.Hour)
	near(time.Hour, ahead())
	require.WithinDuration(t, time.Now(), Start(t).Client(t).Time(t.Context()).Val(), time.Minute)
	require.ErrorIs(t, client.Get(t.Context(), "minute").Err(), redis.Nil)
	require.NoError(t, client.Set(t.Context(), "minute", "v", time.Minute).Err())

	s.SetClock(t, -time.Hour)
	near(-time.Hour, ahead())
	near(2*time.Hour+time.Minute, client.PTTL(t.Context(), "minute").Val())

	s.Restart(t)
	near(-time.Hour, ahead())
	script := client.Eval(t.Context(), "return redis.call('TIME')[1]", nil)
	seconds, err := strconv.ParseInt(script.Val().(string), 10, 64)
	require.NoError(t, err)
	near(-time.Hour, time.Until(time.Unix(seconds, 0)))
}
