package redistest

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// mine fails the test if the server also serves other tests.
func (s *Server) mine(t testing.TB) {
	t.Helper()
	if s.shared {
		t.Fatal("redistest: this server serves other tests, too; start one for this test")
	}
}

// real skips the test on a miniredis.
func (s *Server) real(t testing.TB, what string) {
	t.Helper()
	s.mine(t)
	if s.mini != nil {
		lack(t, "a miniredis "+what)
	}
}

// Stop stops the process, like a machine that hangs. The server answers requests
// from meanwhile after [Server.Cont]. Stop returns when the process stands still.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	s.real(t, "cannot be stopped")
	if err := s.current().stop(); err != nil {
		t.Fatalf("redistest: stopping the server on port %d: %v", s.port, err)
	}
	s.standing(true)
}

// Cont lets a stopped process go on.
func (s *Server) Cont(t testing.TB) {
	t.Helper()
	s.real(t, "cannot be stopped")
	if err := s.current().cont(); err != nil {
		t.Fatalf("redistest: continuing the server on port %d: %v", s.port, err)
	}
	s.standing(false)
}

func (s *Server) standing(yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = yes
}

// alive reports whether the server can answer.
func (s *Server) alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.stopped && !s.process.ended()
}

// Kill ends the process immediately (SIGKILL), even if it is stopped. Connections to it break, and
// the port refuses new ones.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	s.mine(t)
	if s.mini != nil {
		s.mini.Close()
		return
	}
	s.current().kill()
}

// Restart kills the server if it runs, and starts it on the same port. The server then is empty,
// and what [Server.Config] has set is lost. A cluster's node stays in the cluster.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.mine(t)
	if s.mini != nil {
		s.mini.Close()
		s.mini.FlushAll()
		if err := s.mini.Restart(); err != nil {
			t.Fatalf("redistest: %v", err)
		}
		return
	}
	s.current().kill()
	err := errTaken // until the port is free again
	for deadline := time.Now().Add(patience); errors.Is(err, errTaken) && time.Now().Before(deadline); {
		err = s.launch()
	}
	if err != nil {
		t.Fatalf("redistest: restarting: %v", err)
	}
}

// Config sets configuration parameters, in pairs of name and value, until the
// server restarts.
func (s *Server) Config(t testing.TB, pairs ...string) {
	t.Helper()
	s.real(t, "has no configuration")
	args := []any{"CONFIG", "SET"}
	for _, p := range pairs {
		args = append(args, p)
	}
	s.Do(t, args...)
}

// poll asks until the answer is nil. If that takes too long, it returns the last
// answer.
func poll(ask func() error) error {
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if err = ask(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("after %v: %w", patience, err)
}
