package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/rowstore/rowstest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// server starts a MariaDB on a socket of its own, which ends with the test.
func server(t *testing.T) *mysql.Config {
	t.Helper()
	install := exampletest.Program(t, "MYSQL", "mariadb-install-db")
	dir := exampletest.Dir(t)
	data, socket := filepath.Join(dir, "data"), filepath.Join(dir, "s")
	args := []string{"--no-defaults", "--datadir=" + data}
	if os.Getuid() == 0 { // it does not run as root
		args = append(args, "--user=mysql")
		exampletest.NoError(t, os.Chmod(dir, 0o777))
	}
	if out, err := exec.Command(install, append(args, "--auth-root-authentication-method=normal", "--skip-test-db")...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := mysql.NewConfig()
	c.Net, c.Addr, c.User, c.DBName = "unix", socket, "root", "mysql"
	c.Logger = &mysql.NopLogger{}
	exampletest.Server(t, "MYSQL", dir, func() error {
		r, err := open(t.Context(), c.Clone())
		if err != nil {
			return err
		}
		defer r.db.Close()
		var version string
		err = r.db.QueryRow("SELECT version()").Scan(&version)
		t.Log(version)
		return err
	}, "mariadbd", append(args, "--socket="+socket, "--skip-networking", "--pid-file="+filepath.Join(dir, "pid"),
		"--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=16M", "--max-connections=500")...)
	return c
}

func rowsOf(t *testing.T, c *mysql.Config) *rows {
	t.Helper()
	r := exampletest.Must(open(t.Context(), c.Clone()))
	t.Cleanup(func() { _ = r.db.Close() })
	return r
}

// The rows conform, and the example runs.
func TestRows_Conform(t *testing.T) {
	c := server(t)
	exampletest.NoError(t, run(t.Context(), c))
	rowstest.TestRows(t, func(t *testing.T) rowstore.Rows { return rowsOf(t, c) })
}

// Errors that a wait may cure match ErrUnavailable.
func TestRows_ErrorsThatAWaitMayCure(t *testing.T) {
	for number, want := range map[uint16]bool{1205: true, 1213: true, 1040: true, 1290: true, 1045: false, 1146: false, 1142: false, 1062: false} {
		err := explain(fmt.Errorf("wrapped: %w", &mysql.MySQLError{Number: number}))
		if got := errors.Is(err, store.ErrUnavailable); got != want {
			t.Errorf("%d: unavailable %v, want %v", number, got, want)
		}
	}
	if !errors.Is(explain(mysql.ErrInvalidConn), store.ErrUnavailable) {
		t.Error("a connection that is lost is no outage")
	}
}
