package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// redisPatience is how long a server may take until it answers.
const redisPatience = 10 * time.Second

// errNoURL does not show the URL, which may carry a password.
var errNoURL = errors.New("this is no URL of a redis server")

// server is the Redis that the workers share.
type server struct {
	url  string
	what string // its name on the screen and in the result
	rdb  *redis.Client
	end  func()
}

// newServer returns the server at the URL, or a server of the program's own for "".
func newServer(ctx context.Context, url string) (*server, error) {
	if url != "" {
		return given(ctx, url)
	}
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return embedded()
	}
	return started(ctx, program)
}

// connect completes a server, and returns when it answers.
func (s *server) connect(ctx context.Context) error {
	options, err := redis.ParseURL(s.url)
	if err != nil {
		return errNoURL
	}
	s.rdb = redis.NewClient(options)
	ctx, cancel := context.WithTimeout(ctx, redisPatience)
	defer cancel()
	if err := s.rdb.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("redis does not answer: %w", err)
	}
	return nil
}

func (s *server) close() {
	if s.rdb != nil {
		s.rdb.Close() // no operation is under way any more
	}
	s.end()
}

func given(ctx context.Context, url string) (*server, error) {
	s := &server{url: url, end: func() {}}
	if err := s.connect(ctx); err != nil {
		s.close()
		return nil, err
	}
	s.what = "the server of -redis, " + s.version(ctx)
	return s, nil
}

// embedded returns a miniredis inside this process.
func embedded() (*server, error) {
	mini := miniredis.NewMiniRedis()
	if err := mini.Start(); err != nil {
		return nil, fmt.Errorf("miniredis: %w", err)
	}
	s := &server{
		url:  "redis://" + mini.Addr(),
		what: "an embedded miniredis " + moduleVersion("github.com/alicebob/miniredis/v2") + " (no redis-server)",
		end:  mini.Close,
	}
	if err := s.connect(context.Background()); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// started returns a redis-server of the program's own, which stores nothing on disk.
func started(ctx context.Context, program string) (*server, error) {
	dir, err := os.MkdirTemp("", "fleet")
	if err != nil {
		return nil, err
	}
	var s *server
	for range 10 { // another program may take the port in the meantime
		if s, err = launch(ctx, program, dir); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		_ = os.RemoveAll(dir) // the other error matters more
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	s.what = "a redis-server of its own, " + s.version(ctx)
	return s, nil
}

func launch(ctx context.Context, program, dir string) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	// Only the server that starts here has this password, and not another server that was
	// faster to take the port.
	password := rand.Text()
	cmd := exec.Command(program, "-") // its input says what to do, and nobody else can read that
	cmd.Dir = dir
	var log bytes.Buffer
	p, err := start(cmd, func(out io.Reader) {
		_, _ = io.Copy(&log, io.LimitReader(out, 10_000)) // it only explains a failure
	})
	if err != nil {
		return nil, err
	}
	s := &server{
		url: fmt.Sprintf("redis://:%s@127.0.0.1:%d", password, port),
		end: func() {
			p.kill()
			_ = os.RemoveAll(dir) // it is empty
		},
	}
	err = p.tell(fmt.Sprintf("port %d\nbind 127.0.0.1\ndir .\nsave \"\"\nappendonly no\nrequirepass %s", port, password))
	if err == nil {
		err = p.stdin.Close()
	}
	if err == nil {
		err = s.await(ctx, p)
	}
	if err != nil {
		p.kill()
		return nil, fmt.Errorf("port %d: %w; it says:\n%s", port, err, &log)
	}
	return s, nil
}

// await returns when the server answers.
func (s *server) await(ctx context.Context, p *process) error {
	ctx, cancel := context.WithTimeout(ctx, redisPatience)
	defer cancel()
	for {
		err := s.connect(ctx)
		if err == nil {
			return nil
		}
		s.rdb.Close() // the client has no further use
		select {
		case <-time.After(5 * time.Millisecond):
		case <-p.done:
			return errors.New("it has ended at once")
		case <-ctx.Done():
			return err
		}
	}
}

// freePort returns a port that is free at this moment.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// version asks the server for its version. The server may not tell it.
func (s *server) version(ctx context.Context) string {
	text, err := s.rdb.Info(ctx, "server").Result()
	if err == nil {
		if found := redisVersion.FindStringSubmatch(text); found != nil {
			return "version " + found[1]
		}
	}
	return "of an unknown version"
}

var (
	redisVersion = regexp.MustCompile(`(?m)^redis_version:(\S+)`)
	scriptCalls  = regexp.MustCompile(`(?m)^cmdstat_eval\w*:calls=(\d+)`)
)

// commands returns how many scripts the server has run so far, if the server tells.
func (s *server) commands(ctx context.Context) (n int, ok bool) {
	text, err := s.rdb.Info(ctx, "commandstats").Result()
	if err != nil || !strings.Contains(text, "cmdstat_") {
		return 0, false
	}
	for _, found := range scriptCalls.FindAllStringSubmatch(text, -1) {
		calls, err := strconv.Atoi(found[1])
		if err != nil {
			return 0, false
		}
		n += calls
	}
	return n, true
}
