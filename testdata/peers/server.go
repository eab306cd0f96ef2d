package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// requireEnv, set to 1, makes a missing redis-server an error.
const requireEnv = "DRIPFEED_REQUIRE_REDIS"

// patience bounds the start of a server, which normally takes 10 ms.
const patience = 10 * time.Second

// A server is a redis-server of this run's own, on a free port, that writes
// nothing to the disk. It starts at its first use.
type server struct {
	process *process
	client  *redis.Client
}

// newServers returns the servers that there can be, and what is missing. That is an error where
// it is required.
func newServers() (s servers, lacks []error, err error) {
	if err := missing(); err == nil {
		s.redis = new(server)
	} else if required() {
		return s, nil, err
	} else {
		lacks = append(lacks, err)
	}
	if _, err := postgresPrograms(); err == nil {
		s.postgres = new(database)
	} else if os.Getenv(requirePostgresEnv) == "1" {
		return s, nil, err
	} else {
		lacks = append(lacks, err)
	}
	return s, lacks, nil
}

// missing returns the reason why there can be no server, or nil.
func missing() error {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return fmt.Errorf("redis-server is not installed, so nothing is measured through Redis: %w", err)
	}
	return nil
}

// required reports whether a missing server is an error.
func required() bool { return os.Getenv(requireEnv) == "1" }

// empty empties the server and returns its client. The server is then empty: without keys, scripts
// and statistics.
func (s *server) empty() (*redis.Client, error) {
	if s.client == nil {
		if err := s.start(); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := errors.Join(
		s.client.FlushAll(ctx).Err(),
		s.client.ScriptFlush(ctx).Err(),
		s.client.ConfigResetStat(ctx).Err())
	return s.client, err
}

// start tries ports until it finds one that no other process takes first.
func (s *server) start() error {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return err
	}
	for range 5 {
		var listener net.Listener
		if listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
		address := listener.Addr().(*net.TCPAddr)
		listener.Close()
		cmd := exec.Command(path, "--bind", "127.0.0.1", "--port", strconv.Itoa(address.Port),
			"--save", "", "--appendonly", "no", "--dir", os.TempDir(), "--loglevel", "warning")
		if s.process, err = launch(cmd); err != nil {
			return err
		}
		s.client = redis.NewClient(&redis.Options{Addr: address.String()})
		if err = s.answers(); err == nil {
			return nil
		}
		s.stop()
	}
	return err
}

// answers returns when this server does, and no other on the same port.
func (s *server) answers() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for ctx.Err() == nil && !s.process.ended() {
		info, err := s.client.InfoMap(ctx, "server").Result()
		if err == nil && info["Server"]["process_id"] == strconv.Itoa(s.process.cmd.Process.Pid) {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return errors.New("redis-server does not answer")
}

// stop ends the server, if there is one.
func (s *server) stop() {
	if s.client != nil {
		s.client.Close()
	}
	if s.process != nil {
		s.process.kill()
	}
	*s = server{}
}

// usage is processor time of a server, in µs.
type usage struct {
	command float64 // inside one command
	all     float64 // of the whole process, with the network
}

// usage returns the server's time inside command since it was empty, and its
// whole time since it was started.
func (s *server) usage(command string) (u usage, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stats, err := s.client.InfoMap(ctx, "commandstats").Result()
	if err != nil {
		return u, err
	}
	if command != "" {
		// calls=2,usec=13,usec_per_call=6.50,…
		_, text, _ := strings.Cut(stats["Commandstats"]["cmdstat_"+command], "usec=")
		text, _, _ = strings.Cut(text, ",")
		if u.command, err = strconv.ParseFloat(text, 64); err != nil {
			return u, fmt.Errorf("no time of the command %q: %w", command, err)
		}
	}
	cpu, err := s.client.InfoMap(ctx, "cpu").Result()
	if err != nil {
		return u, err
	}
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(cpu["CPU"][name], 64)
		if err != nil {
			return u, fmt.Errorf("no %s: %w", name, err)
		}
		u.all += seconds * 1e6
	}
	return u, nil
}
