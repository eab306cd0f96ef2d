package redistest

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// onDyingThread runs f in a thread that ends afterwards, and returns its id. The
// first thread of a process never ends: if f would run in that one,
// onDyingThread keeps it busy until another thread has run f.
func onDyingThread(f func()) int {
	id := make(chan int)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with its goroutine
		if syscall.Gettid() == syscall.Getpid() {
			defer runtime.UnlockOSThread()
			id <- onDyingThread(f)
			return
		}
		f()
		id <- syscall.Gettid()
	}()
	return <-id
}

// The kernel's promise to end a server is tied to a thread.
func TestProcess_ServerOutlivesTheThread(t *testing.T) {
	need(t)
	b, err := find()
	require.NoError(t, err)
	var s *Server
	id := onDyingThread(func() { s, err = run(config{program: b}) })
	require.NoError(t, err)
	t.Cleanup(s.end)
	require.NoError(t, poll(func() error {
		if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", id)); !os.IsNotExist(err) {
			return fmt.Errorf("thread %d is still there: %v", id, err)
		}
		return nil
	}))
	require.True(t, ping(s.path("s")))
	require.False(t, s.current().ended())
}
