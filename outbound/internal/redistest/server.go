package redistest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// patience bounds every wait of this package that normally takes milliseconds, or
// in a cluster seconds. It only ends a wait that would hang.
const patience = 30 * time.Second

// Server is one server, running or not. Only Addr, Port and Pid may be called concurrently.
type Server struct {
	config config
	dir    string
	port   int
	held   io.Closer            // keeps the port for the server while it does not run
	mini   *miniredis.Miniredis // used instead of a process
	shared bool                 // the server also serves other tests

	mu      sync.Mutex
	process *process
	stopped bool

	offset *os.File // the offset of its clock; nil for the system's clock
}

// config configures a server's start.
type config struct {
	program  program
	args     []string
	env      []string
	sentinel string // the first content of the file that a sentinel rewrites; empty for another server
	clock    bool   // it has a clock of its own
}

// Start starts a server of the test's own, with arguments as redis-server takes
// them ("--maxmemory", "2mb"). It returns when the server answers, about 10 ms
// later. The server ends with the test. Without a redis-server Start gives a
// miniredis, or skips the test if there are arguments.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	b, err := find()
	if err != nil {
		if required() || len(args) > 0 {
			lack(t, err.Error())
		}
		announce(t, "miniredis, inside their own process, since "+err.Error())
		return startMini(t)
	}
	announce(t, b.String())
	return start(t, config{program: b, args: args})
}

// start starts a real server that ends with the test.
func start(t testing.TB, c config) *Server {
	t.Helper()
	s, err := run(c)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	t.Cleanup(s.end)
	return s
}

func startMini(t testing.TB) *Server {
	t.Helper()
	mini := miniredis.NewMiniRedis()
	if err := mini.Start(); err != nil {
		t.Fatalf("redistest: miniredis: %v", err)
	}
	t.Cleanup(mini.Close)
	return &Server{mini: mini}
}

// errTaken says that another process was faster to take the port.
var errTaken = errors.New("the port is taken")

// run starts a server on any free port.
func run(c config) (*Server, error) {
	dir, err := room()
	if err != nil {
		return nil, err
	}
	s := &Server{config: c, dir: dir}
	if c.clock {
		if s.offset, err = newOffset(filepath.Join(dir, "clock")); err != nil {
			s.end()
			return nil, err
		}
	}
	for range 10 {
		if s.port, s.held, err = freePort(); err != nil {
			break
		}
		if err = s.launch(); !errors.Is(err, errTaken) {
			break
		}
		_ = s.held.Close() // the next one is another port
	}
	if err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

// launch starts the process on the server's port and waits until it answers.
func (s *Server) launch() error {
	if s.config.sentinel != "" {
		if err := os.WriteFile(s.path("sentinel.conf"), []byte(s.config.sentinel), 0o600); err != nil {
			return err
		}
	}
	log, err := os.Create(s.path("log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.config.program.path, s.arguments()...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	cmd.Env = append(os.Environ(), s.config.env...)
	if s.offset != nil {
		cmd.Env = append(cmd.Env, clockFile+"="+s.offset.Name())
	}
	p, err := launch(cmd)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.process, s.stopped = p, false
	s.mu.Unlock()
	if err := s.answers(p); err != nil {
		p.kill()
		said, _ := os.ReadFile(s.path("log")) // the log only explains the error
		if bytes.Contains(said, []byte("Address already in use")) {
			return errTaken
		}
		return fmt.Errorf("%s on port %d: %w; it says:\n%s", s.config.program.path, s.port, err, said)
	}
	return nil
}

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) arguments() []string {
	var args []string
	if s.config.sentinel != "" {
		args = append(args, s.path("sentinel.conf"), "--sentinel")
	}
	args = append(args,
		"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir,
		"--unixsocket", s.path("s"), "--daemonize", "no", "--logfile", "",
		"--save", "", "--appendonly", "no")
	if s.config.program.major >= 7 {
		args = append(args, "--enable-debug-command", "local")
	}
	return append(args, s.config.args...)
}

// answers waits until the process says that it serves. It asks through the unix
// socket in the server's own directory, where no other server can answer. A
// server opens the socket after its port.
func (s *Server) answers(p *process) error {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if p.ended() {
			return errors.New("it has ended at once")
		}
		if ping(s.path("s")) {
			return nil
		}
	}
	return errors.New("it does not answer")
}

func ping(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return false
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	reply := make([]byte, 64)
	n, err := conn.Read(reply)
	reply = reply[:n]
	// A server that answers any other error, such as NOAUTH, serves.
	return err == nil && !bytes.HasPrefix(reply, []byte("-LOADING"))
}

// end ends the server permanently.
func (s *Server) end() {
	if p := s.current(); p != nil {
		p.kill()
	}
	if s.held != nil {
		_ = s.held.Close() // it may be closed already
	}
	if s.offset != nil {
		_ = s.offset.Close() // there is nothing left to write
	}
	_ = os.RemoveAll(s.dir) // what is left goes with the root directory
}

func (s *Server) current() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// Real reports whether s is a Redis server, and not a miniredis.
func (s *Server) Real() bool { return s.mini == nil }

// Addr returns "127.0.0.1:port". It stays the same through restarts.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port())) }

// Port returns the server's port.
func (s *Server) Port() int {
	if s.mini != nil {
		port, _ := strconv.Atoi(s.mini.Port()) // miniredis formats what it got from the listener
		return port
	}
	return s.port
}

// Pid returns the id of the server's process. A miniredis runs in the test's own.
func (s *Server) Pid() int {
	if s.mini != nil {
		return os.Getpid()
	}
	return s.current().pid()
}

// Client returns a client of the server, which is closed when the test ends. Its
// options are go-redis' defaults, unless the functions change them.
func (s *Server) Client(t testing.TB, change ...func(*redis.Options)) *redis.Client {
	t.Helper()
	o := &redis.Options{Addr: s.Addr()}
	for _, f := range change {
		f(o)
	}
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() }) // the test may have closed it
	return client
}

// do sends one command directly to the server, on a connection of its own.
func (s *Server) do(args ...any) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	o := &redis.Options{Addr: s.Addr(), MaxRetries: -1, PoolSize: 1, ReadTimeout: patience, DisableIdentity: true}
	if s.mini == nil {
		o.Network, o.Addr = "unix", s.path("s")
	}
	client := redis.NewClient(o)
	defer client.Close()
	return client.Do(ctx, args...).Result()
}

// Do sends one command and returns the reply. It fails the test if that is an
// error.
func (s *Server) Do(t testing.TB, args ...any) any {
	t.Helper()
	reply, err := s.do(args...)
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatalf("redistest: %v: %v", args, err)
	}
	return reply
}
