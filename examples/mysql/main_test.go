package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/rowstore/rowstest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// program returns the first program that is installed.
func program(names ...string) (path string) {
	for _, name := range names {
		if path, _ = exec.LookPath(name); path != "" {
			break
		}
	}
	return path
}

// server starts a MariaDB on a socket of its own, which ends with the test. Without one the test is
// skipped, or fails where servers are required.
func server(t *testing.T) *mysql.Config {
	t.Helper()
	install, daemon := program("mariadb-install-db"), program("mariadbd", "/usr/sbin/mariadbd")
	if install == "" || daemon == "" {
		if os.Getenv("DRIPFEED_REQUIRE_MYSQL") != "" {
			t.Fatal("there is no mariadb-server")
		}
		t.Skip("there is no mariadb-server")
	}
	dir, err := os.MkdirTemp("", "my") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	as := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if u, err := user.Lookup("mysql"); err == nil && os.Getuid() == 0 { // it does not run as root
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		as.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	data, socket := filepath.Join(dir, "data"), filepath.Join(dir, "s")
	cmd := exec.Command(install, "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as.Credential}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var log bytes.Buffer
	cmd = exec.Command(daemon, "--no-defaults", "--datadir="+data, "--socket="+socket, "--skip-networking", "--pid-file="+filepath.Join(dir, "pid"),
		"--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=16M", "--max-connections=500")
	cmd.SysProcAttr, cmd.Stderr = as, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	c := mysql.NewConfig()
	c.Net, c.Addr, c.User, c.DBName = "unix", socket, "root", "mysql"
	c.Logger = &mysql.NopLogger{}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		r, err := open(t.Context(), c.Clone())
		if err == nil {
			var version string
			err = r.db.QueryRow("SELECT version()").Scan(&version)
			t.Log(version)
			_ = r.db.Close()
		}
		if err == nil {
			return c
		}
		if time.Now().After(end) {
			t.Fatalf("%v\n%s", err, &log)
		}
	}
}

func rowsOf(t *testing.T, c *mysql.Config) *rows {
	t.Helper()
	r, err := open(t.Context(), c.Clone())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.db.Close() })
	return r
}

// The rows conform, and the example runs.
func TestRows_Conform(t *testing.T) {
	c := server(t)
	if err := run(t.Context(), c); err != nil {
		t.Error(err)
	}
	rowstest.TestRows(t, func(t *testing.T) rowstore.Rows { return rowsOf(t, c) })
}

// Errors that a wait may cure match ErrUnavailable.
func TestRows_ErrorsThatAWaitMayCure(t *testing.T) {
	for number, want := range map[uint16]bool{1205: true, 1213: true, 1040: true, 1290: true, 1045: false, 1146: false, 1142: false, 1062: false} {
		err := explain(fmt.Errorf("wrapped: %w", &mysql.MySQLError{Number: number}))
		if got := isUnavailable(err); got != want {
			t.Errorf("%d: unavailable %v, want %v", number, got, want)
		}
	}
	if !isUnavailable(explain(mysql.ErrInvalidConn)) {
		t.Error("a connection that is lost is no outage")
	}
}

func isUnavailable(err error) bool { return errors.Is(err, store.ErrUnavailable) }
