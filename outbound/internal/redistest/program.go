package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"testing"
)

// program is the redis-server on PATH.
type program struct {
	path  string
	name  string // the server's own name for itself, with its version
	major int
}

func (p program) String() string { return fmt.Sprintf("%s (%s)", p.name, p.path) }

var versionText = regexp.MustCompile(`^(\w+) server v=((\d+)\S*)`)

// find looks for redis-server, each time again, because a test may change PATH.
func find() (program, error) {
	if runtime.GOOS != "linux" {
		return program{}, errors.New("real servers are started on Linux only, where the kernel ends them with the test")
	}
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return program{}, errors.New("there is no redis-server on PATH")
	}
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return program{}, fmt.Errorf("%s --version: %w", path, err)
	}
	found := versionText.FindSubmatch(out)
	if found == nil {
		return program{}, fmt.Errorf("%s --version says %q", path, out)
	}
	major, err := strconv.Atoi(string(found[3]))
	if err != nil {
		return program{}, fmt.Errorf("%s --version says %q", path, out)
	}
	return program{path: path, name: fmt.Sprintf("a real server, %s %s", found[1], found[2]), major: major}, nil
}

// required reports whether a missing server is a failure.
func required() bool { return os.Getenv("DRIPFEED_REQUIRE_REDIS") == "1" }

// lack skips the test because something is missing, or fails it where nothing may be
// missing.
func lack(t testing.TB, why string) {
	t.Helper()
	if required() {
		t.Fatalf("redistest: %s, and DRIPFEED_REQUIRE_REDIS=1 says that it must not be missing", why)
	}
	t.Skipf("redistest: %s", why)
}

var announced sync.Once

// announce logs once per process which server the tests talk to.
func announce(t testing.TB, what string) {
	t.Helper()
	announced.Do(func() { t.Log("redistest: these tests talk to " + what) })
}
