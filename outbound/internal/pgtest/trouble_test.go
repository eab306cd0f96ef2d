package pgtest

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// short makes a store give up soon.
func short(c *pgstore.Config) { c.Timeout = time.Second }

func TestErrorsThatNoWaitCures(t *testing.T) {
	x := newTables(t, theServer(t))
	nobody := fmt.Sprintf("nobody_%d", time.Now().UnixNano())
	x.exec(t, "CREATE ROLE "+nobody+" LOGIN")
	worker := x.role(t)
	broken := newTables(t, theServer(t))
	broken.exec(t, "DROP TABLE "+broken.table())
	for _, c := range []struct {
		name, state, says string
		tables            *tables
		config            func(*pgstore.Config)
	}{
		{"no table", "42P01", "Migrate", broken, short},
		{"no function", "42883", "Migrate", x, func(c *pgstore.Config) { c.Table = "other" }},
		{"no schema", "3F000", "Migrate", x, func(c *pgstore.Config) { c.Schema = "elsewhere" }},
		{"no grant", "42501", "permission", x.as(url.User(nobody)), short},
		{"no role", "28000", "does not exist", x.as(url.User("unknown_role")), short},
	} {
		for _, driver := range []string{"pgx", "postgres"} {
			t.Run(c.name+" "+driver, func(t *testing.T) {
				var told events
				s := x.over(c.tables.open(t, driver, nil), func(k *pgstore.Config) {
					k.Schema, k.Timeout = c.tables.config.Schema, 20*time.Second
					c.config(k)
					k.Timeout = 20 * time.Second // the error comes at once
				}, told.observe)
				start := time.Now()
				_, err := s.Update(bg, "secret key", calls(1))
				require.Less(t, time.Since(start), 10*time.Second)
				require.ErrorContains(t, err, c.says)
				require.NotErrorIs(t, err, store.ErrUnavailable)
				require.NotContains(t, err.Error(), "secret")
				var state interface{ SQLState() string }
				require.ErrorAs(t, err, &state)
				require.Equal(t, c.state, state.SQLState())
				require.ErrorIs(t, told.await(t, store.EventDenied).Err, err)
				require.Empty(t, told.of(store.EventDown))
			})
		}
	}
	_, err := x.over(x.as(worker).open(t, "", nil)).Update(bg, "key", calls(1))
	require.NoError(t, err)
}

func TestErrorsThatAWaitMayCure(t *testing.T) {
	for name, c := range map[string]struct {
		says  string
		cause func(t *testing.T, x *tables) (worker *tables, cure func())
	}{
		"only reads": {"25006", func(t *testing.T, x *tables) (*tables, func()) {
			who := x.role(t, "default_transaction_read_only = on")
			return x.as(who), func() { x.exec(t, "ALTER ROLE "+who.Username()+" RESET default_transaction_read_only") }
		}},
		"no connection left": {"53300", func(t *testing.T, x *tables) (*tables, func()) {
			who := x.role(t)
			x.exec(t, "ALTER ROLE "+who.Username()+" CONNECTION LIMIT 0")
			return x.as(who), func() { x.exec(t, "ALTER ROLE "+who.Username()+" CONNECTION LIMIT 1") }
		}},
		"statements end": {"57014", func(t *testing.T, x *tables) (*tables, func()) {
			who := x.role(t, "statement_timeout = '1ms'")
			stop := make(chan struct{})
			ended := make(chan struct{})
			db := x.open(t, "", nil)
			tx, err := db.Begin()
			require.NoError(t, err)
			_, err = tx.Exec("LOCK " + x.table())
			require.NoError(t, err)
			go func() {
				<-stop
				_ = tx.Rollback()
				close(ended)
			}()
			return x.as(who), func() {
				close(stop)
				<-ended
				x.exec(t, "ALTER ROLE "+who.Username()+" RESET statement_timeout")
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			x := newTables(t, theServer(t))
			worker, cure := c.cause(t, x)
			var told events
			db := worker.open(t, "", nil)
			db.SetMaxIdleConns(0)
			s := x.over(db, short, told.observe)
			for said := false; !said; { // a busy machine may hear nothing in time
				start := time.Now()
				_, err := s.Update(bg, "key", calls(1))
				require.ErrorIs(t, err, store.ErrUnavailable)
				require.Less(t, time.Since(start), 10*time.Second)
				said = strings.Contains(err.Error(), c.says)
			}
			told.await(t, store.EventDown)
			cure()
			require.Eventually(t, func() bool {
				_, err := s.Update(bg, "key", calls(1))
				return err == nil
			}, patience, 10*time.Millisecond)
			told.await(t, store.EventUp)
			require.Empty(t, told.of(store.EventDenied))
		})
	}
}

func TestAServerThatIsNotThere(t *testing.T) {
	for driver, host := range map[string]string{"pgx": "127.0.0.1:1", "postgres": "127.0.0.1:1"} {
		s := &server{host: host, user: url.User("postgres")}
		x := &tables{server: s}
		dead := x.over(s.open(t, driver, nil), short)
		for said := false; !said; { // a busy machine may hear nothing in time
			_, err := dead.Update(bg, "key", calls(1))
			require.ErrorIs(t, err, store.ErrUnavailable)
			said = strings.Contains(err.Error(), "refused")
		}
	}
	var none *sql.DB
	_, err := pgstore.New(none, pgstore.Config{}).Update(bg, "key", calls(1))
	require.ErrorContains(t, err, "nil argument")
	require.ErrorContains(t, pgstore.Migrate(bg, nil, pgstore.Config{}), "nil argument")
	db, err := sql.Open("pgx", "postgres://127.0.0.1:1/")
	require.NoError(t, err)
	require.NoError(t, db.Close())
	_, err = pgstore.New(db, pgstore.Config{}).Update(bg, "key", calls(1))
	require.ErrorContains(t, err, "closed")
	require.NotErrorIs(t, err, store.ErrUnavailable)
}

// The program's own transactions have all connections of the pool.
func TestAPoolThatIsUsedUp(t *testing.T) {
	x := newTables(t, theServer(t))
	db := x.open(t, "", nil)
	db.SetMaxOpenConns(2)
	s := x.over(db, short)
	_, err := s.Update(bg, "key", calls(1))
	require.NoError(t, err)
	var held []*sql.Tx
	for range 2 {
		tx, err := db.Begin()
		require.NoError(t, err)
		held = append(held, tx)
	}
	start := time.Now()
	_, err = s.Update(bg, "key", calls(1))
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.Less(t, time.Since(start), 10*time.Second)
	for _, tx := range held {
		require.NoError(t, tx.Rollback())
	}
	require.Eventually(t, func() bool {
		_, err := s.Update(bg, "key", calls(1))
		return err == nil
	}, patience, 10*time.Millisecond)
}

func TestGarbageInARow(t *testing.T) {
	x := newTables(t, theServer(t))
	_, err := x.open(t, "", nil).Exec("INSERT INTO " + x.table() + " VALUES ('key', 0, 'x', now())")
	require.ErrorContains(t, err, "token_check", "0 is the token of no row, and nobody could write over it")
	ten := outbound.Limit{Capacity: 10, LeakRate: 1e-5}
	limits := []store.Limit{{Capacity: 10, Rate: 1e-5}}
	stored := store.Stored{State: store.New(1, 1), Limits: limits, Number: 1, Base: store.Hash(limits)}
	for name, level := range map[string]float64{"NaN": math.NaN(), "huge": 1e300, "format": 0} {
		var told events
		s := x.store(t, told.observe)
		stored.State.Level[0] = level
		b, _ := stored.AppendBinary([]byte{1, 0})
		if level == 0 {
			b[0] = 200
		}
		x.exec(t, "INSERT INTO "+x.table()+" VALUES ($1, 5, $2, now() + interval '1 hour')", s.Key(name), b)
		_, err := bucket(s, name, ten).Acquire(bg, outbound.Cost{1})
		require.ErrorIs(t, err, outbound.ErrThrottled, name)
		told.await(t, store.EventCorrupt)
		require.NoError(t, bucket(s, name, ten).Resume(bg))
		state, err := bucket(s, name, ten).State(bg)
		require.NoError(t, err)
		require.InDelta(t, 0, state.Level, 0.1)
		x.exec(t, "DELETE FROM "+x.table()+" WHERE key = $1", s.Key(name))
		_, err = bucket(s, name, ten).Acquire(bg, outbound.Cost{1})
		require.NoError(t, err, name)
	}
}

// A server that hangs for 5 s ends no call late, with or without a context that ends. No more goes
// out than the limit allows, whatever the server still carries out when it goes on.
func TestAServerThatHangs(t *testing.T) {
	x := newTables(t, ownServer(t))
	var told events
	s := x.over(x.open(t, "", nil), short, told.observe)
	b := bucket(s, "key", outbound.Limit{Capacity: 1e4, LeakRate: 1e-5})
	permit, err := b.Acquire(bg, outbound.Cost{1})
	require.NoError(t, err)
	limit := outbound.Limit{Capacity: 10, LeakRate: 50}
	var went, before atomic.Int64
	stop := make(chan struct{})
	var callers sync.WaitGroup
	begun := time.Now()
	for range 3 {
		busy := bucket(x.store(t, short), "busy", limit)
		for range 4 {
			callers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if _, err := busy.Acquire(bg, outbound.Cost{1}); err == nil {
						went.Add(1)
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
	}
	time.Sleep(100 * time.Millisecond) // until they are at it
	x.signal(t, syscall.SIGSTOP)
	defer x.signal(t, syscall.SIGCONT)
	start := time.Now()
	permit.Settle(outbound.Cost{5})
	_, err = b.Acquire(bg, outbound.Cost{1})
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.Less(t, time.Since(start), 10*time.Second)
	told.await(t, store.EventDown)
	time.Sleep(time.Until(start.Add(5 * time.Second)))
	before.Store(went.Load())
	on := time.Now()
	x.signal(t, syscall.SIGCONT)
	admitted := 0.
	require.Eventually(t, func() bool {
		_, err := b.Acquire(bg, outbound.Cost{1})
		if err == nil {
			admitted++
		}
		return err == nil
	}, patience, 10*time.Millisecond)
	told.await(t, store.EventUp)
	require.Eventually(t, func() bool { return went.Load() > before.Load()+20 }, patience, time.Millisecond)
	close(stop)
	callers.Wait()
	end := time.Now()
	require.LessOrEqual(t, float64(went.Load()), limit.Capacity+limit.LeakRate*end.Sub(begun).Seconds())
	require.LessOrEqual(t, float64(went.Load()-before.Load()), limit.Capacity+limit.LeakRate*end.Sub(on).Seconds())
	state, err := b.State(context.WithoutCancel(bg))
	require.NoError(t, err)
	require.GreaterOrEqual(t, state.Level, 1+admitted-0.1, "nothing of what was admitted is lost")
}
