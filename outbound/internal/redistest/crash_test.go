package redistest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// child runs TestProcess_OfItsOwn in a process of its own.
func child(t *testing.T, does string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProcess_OfItsOwn$", "-test.v", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), append(env, "REDISTEST_CHILD="+does)...)
	return cmd
}

// TestProcess_OfItsOwn is the child's part of the tests below.
func TestProcess_OfItsOwn(t *testing.T) {
	does := os.Getenv("REDISTEST_CHILD")
	switch does {
	case "":
		t.Skip("this one is run by others")
	case "without":
		withoutServer(t)
		return
	}
	own, stopped := Start(t), Start(t)
	stopped.Stop(t)
	dir, err := root()
	require.NoError(t, err)
	fmt.Println("pids", Shared(t).Pid(), own.Pid(), stopped.Pid(), dir)
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		t.Error(err)
	}
	if does == "panic" {
		go func() { panic("on purpose") }()
		select {}
	}
}

// However a process ends, its servers and their files end with it.
func TestProcess_EndsItsServersAndFiles(t *testing.T) {
	need(t)
	for _, how := range []string{"kill", "panic", "return"} {
		t.Run(how, func(t *testing.T) {
			cmd := child(t, how)
			in, err := cmd.StdinPipe()
			require.NoError(t, err)
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			var pids []int
			var dir string
			lines := bufio.NewScanner(out)
			for dir == "" && lines.Scan() {
				if words := strings.Fields(lines.Text()); len(words) == 5 && words[0] == "pids" {
					for _, text := range words[1:4] {
						pid, err := strconv.Atoi(text)
						require.NoError(t, err)
						require.False(t, gone(pid))
						pids = append(pids, pid)
					}
					dir = words[4]
				}
			}
			require.NotEmpty(t, dir, "it has not started its servers")
			require.DirExists(t, dir)
			if how == "kill" {
				require.NoError(t, cmd.Process.Kill())
			} else {
				_, err = fmt.Fprintln(in)
				require.NoError(t, err)
			}
			for lines.Scan() {
			}
			require.Equal(t, how == "return", cmd.Wait() == nil)
			require.NoError(t, poll(func() error {
				for _, pid := range pids {
					if !gone(pid) {
						return fmt.Errorf("process %d runs", pid)
					}
				}
				if _, err := os.Stat(dir); !os.IsNotExist(err) {
					return fmt.Errorf("%s exists: %v", dir, err)
				}
				return nil
			}))
		})
	}
}

// withoutServer makes a test see a machine without redis-server.
func withoutServer(t *testing.T) {
	for name, test := range map[string]func(t *testing.T){
		"shared":         func(t *testing.T) { require.NoError(t, Shared(t).Client(t).Ping(t.Context()).Err()) },
		"own":            func(t *testing.T) { Start(t).Restart(t) },
		"stop":           func(t *testing.T) { Start(t).Stop(t) },
		"arguments":      func(t *testing.T) { Start(t, "--maxmemory", "1mb") },
		"clock":          func(t *testing.T) { StartWithClock(t) },
		"cluster":        func(t *testing.T) { StartCluster(t) },
		"shared_cluster": func(t *testing.T) { SharedCluster(t) },
		"sentinel":       func(t *testing.T) { StartSentinel(t) },
		"each": func(t *testing.T) {
			Each(t, func(t *testing.T, client redis.UniversalClient) {
				require.NoError(t, client.Ping(t.Context()).Err())
			})
		},
	} {
		t.Run(name, test)
	}
}

// Without redis-server a miniredis stands in, and tests that need more are skipped. They all fail
// if the server is required. A clock needs a compiler, too.
func TestServer_MissingPrograms(t *testing.T) {
	need(t)
	b, err := find()
	require.NoError(t, err)
	bin := t.TempDir()
	require.NoError(t, os.Symlink(b.path, filepath.Join(bin, "redis-server")))
	real := []string{"stop", "arguments", "clock", "cluster", "shared_cluster", "sentinel", "each/redis"}
	for _, c := range []struct {
		path, required string
		pass           []string
		others, says   string
		not            []string
	}{
		{t.TempDir(), "", []string{"shared", "own", "each", "each/miniredis"}, "SKIP", "there is no redis-server on PATH", real},
		{t.TempDir(), "1", []string{"each/miniredis"}, "FAIL", "DRIPFEED_REQUIRE_REDIS=1", append(real, "shared", "own")},
		{bin, "", []string{"shared", "own", "stop", "each/redis"}, "SKIP", "there is no gcc on PATH", []string{"clock"}},
	} {
		cmd := child(t, "without", "PATH="+c.path, "DRIPFEED_REQUIRE_REDIS="+c.required)
		if c.path == bin { // a cluster would take seconds
			cmd.Args = append(cmd.Args, "-test.run=^TestProcess_OfItsOwn$/^(shared|own|stop|each|clock)$")
		}
		out, err := cmd.CombinedOutput()
		require.Equal(t, c.others == "FAIL", err != nil, "%s", out)
		require.Equal(t, c.others == "FAIL", !strings.Contains(string(out), "--- SKIP"), "%s", out)
		require.Contains(t, string(out), c.says)
		require.Equal(t, c.required == "", strings.Count(string(out), "these tests talk to") == 1, "%s", out)
		for _, name := range c.pass {
			require.Contains(t, string(out), "--- PASS: TestProcess_OfItsOwn/"+name+" (")
		}
		for _, name := range c.not {
			require.Contains(t, string(out), "--- "+c.others+": TestProcess_OfItsOwn/"+name+" (")
		}
	}
}
