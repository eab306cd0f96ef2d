package main

import (
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// redisServer returns a server that ends with the test.
func redisServer(t *testing.T) *server {
	if err := missing(); err != nil {
		if required() {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	s := new(server)
	t.Cleanup(s.stop)
	return s
}

// Without a server the tables say what they lack. Where it is required, that is an error.
func TestServer_MissingOneIsAnErrorIfRequired(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv(requireEnv, "")
	t.Setenv(requirePostgresEnv, "")
	const lack = "redis-server is not installed"
	if out, progress := measured(t, small, "^$"); !strings.Contains(out, lack) || !strings.Contains(progress, lack) {
		t.Errorf("no %q in\n%s\nor\n%s", lack, out, progress)
	}
	t.Setenv(requireEnv, "1")
	fails(t, run(io.Discard, io.Discard, small, regexp.MustCompile("^$")), lack)
}

// A server is emptied for each measurement, and ends with the run.
func TestServer_IsEmptyAndEndsWithTheRun(t *testing.T) {
	s := redisServer(t)
	rdb, err := s.empty()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := rdb.Set(t.Context(), "key", 1, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if u, err := s.usage("set"); err != nil || u.command <= 0 || u.all <= 0 {
		t.Errorf("3 commands took %+v, %v", u, err)
	}
	if _, err = s.empty(); err != nil {
		t.Fatal(err)
	}
	if n, err := rdb.DBSize(t.Context()).Result(); err != nil || n != 0 {
		t.Errorf("%d keys are left, %v", n, err)
	}
	if u, err := s.usage("set"); err == nil {
		t.Errorf("of no command there is %+v", u)
	}
	process := s.process
	s.stop()
	if !process.ended() {
		t.Error("the server goes on")
	}
}

// The sorted set admits its limit, drops calls that are too old, and expires.
func TestSortedSet_KeepsItsLimitAndExpires(t *testing.T) {
	s := redisServer(t)
	rdb, err := s.empty()
	if err != nil {
		t.Fatal(err)
	}
	take, err := sortedSet().sharedWindow(rdb, 100, ever)
	if err == nil {
		err = holdsTo(100, take)
	}
	if err != nil {
		t.Error(err)
	}
	if left, err := rdb.PTTL(t.Context(), "window").Result(); err != nil || left <= 0 || left > ever {
		t.Errorf("the key goes after %v, %v", left, err)
	}
	if err := rdb.ZAdd(t.Context(), "window", redis.Z{Score: 1, Member: "of long ago"}).Err(); err != nil {
		t.Fatal(err)
	}
	take()
	if n, err := rdb.ZCard(t.Context(), "window").Result(); err != nil || n != 100 {
		t.Errorf("%d calls are kept, %v, want those of the window", n, err)
	}
}

// PostgreSQL is emptied for each measurement. It ends with the run, and leaves no files.
func TestPostgres_IsEmptyAndEndsWithTheRun(t *testing.T) {
	all, _, err := newServers()
	if err != nil {
		t.Fatal(err)
	}
	d := all.postgres
	if d == nil {
		t.Skip("there is no PostgreSQL")
	}
	defer d.stop()
	for range 2 { // or the table would be there
		db, err := d.empty()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec("CREATE TABLE buckets ()"); err != nil {
			t.Fatal(err)
		}
	}
	process, dir := d.process, d.dir
	d.stop()
	if _, err := os.Stat(dir); !process.ended() || err == nil {
		t.Error("the server goes on, or its files are left")
	}
}
