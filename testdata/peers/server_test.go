package main

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestServer_MissingOneIsAnErrorIfRequired(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv(requireEnv, "")
	t.Setenv(requirePostgresEnv, "")
	nothingAtAll := regexp.MustCompile("^$")
	const said = "redis-server is not installed"

	var out, progress bytes.Buffer
	if err := run(&out, &progress, small, nothingAtAll); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), said) || !strings.Contains(progress.String(), said) {
		t.Errorf("nothing is said of the server in\n%s\nor\n%s", out.String(), progress.String())
	}

	t.Setenv(requireEnv, "1")
	if err := run(io.Discard, io.Discard, small, nothingAtAll); err == nil || !strings.Contains(err.Error(), said) {
		t.Errorf("got error %v", err)
	}
}

func TestServer_IsEmptyAndEndsWithTheRun(t *testing.T) {
	if err := missing(); err != nil {
		if required() {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	s := new(server)
	defer s.stop()
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

func TestSortedSet_KeepsItsLimitAndExpires(t *testing.T) {
	if err := missing(); err != nil {
		if required() {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	s := new(server)
	defer s.stop()
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
