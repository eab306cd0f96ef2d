package redistest

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

//go:embed testdata/clock.c
var clockSource []byte

// clockFile is the environment variable that names the file with a server's
// offset.
const clockFile = "REDISTEST_CLOCK"

var errNoCompiler = errors.New("there is no gcc on PATH, which a clock of the server's own needs")

// clockLibrary builds the library that servers preload, once per process.
var clockLibrary = sync.OnceValues(func() (string, error) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return "", errNoCompiler
	}
	dir, err := room()
	if err != nil {
		return "", err
	}
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		return "", err
	}
	if out, err := exec.Command(gcc, "-shared", "-fPIC", "-O2", "-o", library, source).CombinedOutput(); err != nil {
		return "", fmt.Errorf("gcc: %w:\n%s", err, out)
	}
	return library, nil
})

// StartWithClock starts a server whose wall clock [Server.SetClock] moves. The
// test is skipped where there is no gcc to build the library that moves it.
func StartWithClock(t testing.TB, args ...string) *Server {
	t.Helper()
	b, err := find()
	if err != nil {
		lack(t, err.Error())
	}
	library, err := clockLibrary()
	if errors.Is(err, errNoCompiler) {
		lack(t, err.Error())
	}
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	announce(t, b.String())
	return start(t, config{program: b, args: args, env: []string{"LD_PRELOAD=" + library}, clock: true})
}

// newOffset makes the file from which a server's clock reads its offset.
func newOffset(path string) (*os.File, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := writeOffset(f, 0); err != nil {
		_ = f.Close() // the other error says more
		return nil, err
	}
	return f, nil
}

func writeOffset(f *os.File, offset time.Duration) error {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], uint64(offset))
	_, err := f.WriteAt(b[:], 0)
	return err
}

// SetClock sets the server's wall clock to the system's plus offset, from now on
// and through restarts. TIME and all expiries follow that clock. Only a server
// from [StartWithClock] has such a clock.
func (s *Server) SetClock(t testing.TB, offset time.Duration) {
	t.Helper()
	if s.offset == nil {
		t.Fatal("redistest: SetClock needs a server from StartWithClock")
	}
	if err := writeOffset(s.offset, offset); err != nil {
		t.Fatalf("redistest: %v", err)
	}
	// Commands that are under way may have read the time before.
	s.Do(t, "PING")
}
