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

			var pids []string
			var dir string
			lines := bufio.NewScanner(out)
			for dir == "" && lines.Scan() {
				if words := strings.Fields(lines.Text()); len(words) == 5 && words[0] == "pids" {
					pids, dir = words[1:4], words[4]
				}
			}
			require.NotEmpty(t, dir, "it has not started its servers")
			require.DirExists(t, dir)
			for _, text := range pids {
				pid, err := strconv.Atoi(text)
				require.NoError(t, err)
				require.False(t, gone(pid))
			}

			if how == "kill" {
				require.NoError(t, cmd.Process.Kill())
			} else {
				_, err = fmt.Fprintln(in)
				require.NoError(t, err)
			}
			for lines.Scan() {
			}
			require.Equal(t, how == "return", cmd.Wait() == nil)
			for _, text := range pids {
				pid, err := strconv.Atoi(text)
				require.NoError(t, err)
				require.NoError(t, poll(func() error {
					if !gone(pid) {
						return fmt.Errorf("process %d is still there", pid)
					}
					return nil
				}))
			}
			require.NoError(t, poll(func() error {
				if _, err := os.Stat(dir); !os.IsNotExist(err) {
					return fmt.Errorf("%s is still there: %v", dir, err)
				}
				return nil
			}))
		})
	}
}

// withoutServer makes a test see a machine without redis-server.
func withoutServer(t *testing.T) {
	tests := []struct {
		name string
		test func(t *testing.T)
	}{
		{"shared", func(t *testing.T) { require.NoError(t, Shared(t).Client(t).Ping(t.Context()).Err()) }},
		{"own", func(t *testing.T) { Start(t).Restart(t) }},
		{"stop", func(t *testing.T) { Start(t).Stop(t) }},
		{"config", func(t *testing.T) { Start(t).Config(t, "maxmemory", "1mb") }},
		{"arguments", func(t *testing.T) { Start(t, "--maxmemory", "1mb") }},
		{"clock", func(t *testing.T) { StartWithClock(t) }},
		{"cluster", func(t *testing.T) { StartCluster(t) }},
		{"shared cluster", func(t *testing.T) { SharedCluster(t) }},
		{"sentinel", func(t *testing.T) { StartSentinel(t) }},
		{"each", func(t *testing.T) {
			Each(t, func(t *testing.T, _ string, client redis.UniversalClient) {
				require.NoError(t, client.Ping(t.Context()).Err())
			})
		}},
	}
	for _, test := range tests {
		t.Run(test.name, test.test)
	}
}

func TestServer_MiniredisInPlaceOfAMissingOne(t *testing.T) {
	out, err := child(t, "without", "PATH="+t.TempDir(), "DRIPFEED_REQUIRE_REDIS=").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, 1, strings.Count(string(out), "these tests talk to miniredis"), "%s", out)
	for _, name := range []string{"shared", "own", "each", "each/miniredis"} {
		require.Contains(t, string(out), "--- PASS: TestProcess_OfItsOwn/"+name+" (", "%s", out)
	}
	for _, name := range []string{"stop", "config", "arguments", "clock", "cluster", "shared_cluster", "sentinel", "each/redis"} {
		require.Contains(t, string(out), "--- SKIP: TestProcess_OfItsOwn/"+name+" (", "%s", out)
	}
	require.Contains(t, string(out), "there is no redis-server on PATH")
	require.Contains(t, string(out), "a miniredis cannot be stopped")
}

func TestServer_MissingOneFailsIfRequired(t *testing.T) {
	out, err := child(t, "without", "PATH="+t.TempDir(), "DRIPFEED_REQUIRE_REDIS=1").CombinedOutput()
	require.Error(t, err)
	for _, name := range []string{"shared", "own", "stop", "config", "arguments", "clock", "cluster", "shared_cluster", "sentinel", "each/redis"} {
		require.Contains(t, string(out), "--- FAIL: TestProcess_OfItsOwn/"+name+" (", "%s", out)
	}
	require.Contains(t, string(out), "DRIPFEED_REQUIRE_REDIS=1")
	require.NotContains(t, string(out), "--- SKIP")
}

// A clock needs a compiler as well.
func TestServer_MissingCompilerIsNamed(t *testing.T) {
	need(t)
	b, err := find()
	require.NoError(t, err)
	bin := t.TempDir()
	require.NoError(t, os.Symlink(b.path, filepath.Join(bin, "redis-server")))
	cmd := child(t, "without", "PATH="+bin, "DRIPFEED_REQUIRE_REDIS=")
	cmd.Args = append(cmd.Args, "-test.run=^TestProcess_OfItsOwn$/^clock$")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- SKIP: TestProcess_OfItsOwn/clock (")
	require.Contains(t, string(out), "there is no gcc on PATH")
}
