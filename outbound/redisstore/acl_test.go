package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// documented returns the words of the user in the manual.
func documented(t testing.TB) []string {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^//	ACL SETUSER (.*)((?:\n//	    .*)*)$`).FindStringSubmatch(string(doc))
	require.NotNil(t, line, "the manual has no ACL SETUSER")
	return strings.Fields(strings.NewReplacer("//", "", "password", "secret").Replace(line[1] + line[2]))
}

// worker makes the documented user on a server, without some of the words. It
// returns an option that makes a client this user's.
func worker(t testing.TB, s *redistest.Server, without ...string) func(*redis.Options) {
	words := documented(t)
	args := []any{"ACL", "SETUSER"}
	for _, w := range words {
		if !slices.Contains(without, w) {
			args = append(args, w)
		}
	}
	s.Do(t, args...)
	return func(o *redis.Options) { o.Username, o.Password = words[0], "secret" }
}

func TestTheDocumentedUserPassesTheExam(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxclients", "500")
	rdb := server.Client(t, worker(t, server, "+cluster|slots", "+command"))
	require.ErrorContains(t, rdb.Set(t.Context(), "dripfeed:1:x", 1, 0).Err(), "NOPERM")
	require.ErrorContains(t, rdb.HSet(t.Context(), "others", "x", 1).Err(), "NOPERM")
	outboundtest.TestStore(t, func(*testing.T) leak.Store { return redisstore.New(rdb, redisstore.Config{Timeout: time.Minute}) })
}

func TestTheDocumentedUserPassesTheExamOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.SharedCluster(t)
	for _, n := range c.Nodes {
		worker(t, n)
	}
	rdb := c.Client(t, func(o *redis.ClusterOptions) { o.Username, o.Password = documented(t)[0], "secret" })
	outboundtest.TestStore(t, func(*testing.T) leak.Store {
		return redisstore.New(rdb, redisstore.Config{Timeout: 5 * time.Second})
	})
}

func TestAClusterThatDeniesIsNotAway(t *testing.T) {
	t.Parallel()
	c := redistest.SharedCluster(t)
	for _, user := range []struct{ says, name, password string }{{"WRONGPASS", "nobody", "wrong"}, {"NOPERM", "stranger", "secret"}} {
		for _, n := range c.Nodes {
			n.Do(t, "ACL", "SETUSER", "stranger", "on", ">secret", "~others:*", "+@all")
		}
		rdb := c.Client(t, func(o *redis.ClusterOptions) { o.Username, o.Password = user.name, user.password })
		var told events
		s := redisstore.New(rdb, redisstore.Config{Timeout: 10 * time.Second, Observe: told.observe})
		for range 3 {
			_, err := outbound.Must(outbound.NewSharedBucket(s, "denied", outbound.PerSecond(1))).Acquire(t.Context(), outbound.Cost{1})
			require.ErrorContains(t, err, user.says)
			require.False(t, isAway(err), "%v", err)
		}
		require.ErrorContains(t, told.await(t, leak.EventDenied).Err, user.says)
		require.Len(t, told.of(leak.EventDenied), 1)
		require.Empty(t, told.of(leak.EventDown))
	}
}

// everyCommand runs every command of the script, and returns the first error.
func everyCommand(t testing.TB, s *redistest.Server, rdb *redis.Client, offset *time.Duration) error {
	s.Do(t, "SCRIPT", "FLUSH")
	store := redisstore.New(rdb, redisstore.Config{Timeout: time.Minute})
	b := outbound.Must(outbound.NewSharedBucket(store, fmt.Sprint("acl:", rand.Uint64()), outbound.Limit{Capacity: 10, LeakRate: 1}))
	_, err := b.Acquire(t.Context(), outbound.Cost{1})
	if err != nil {
		return err
	}
	// Hold the bucket's clock, and let it run freely again.
	if err := b.Hold(t.Context(), time.Second); err != nil {
		return err
	}
	*offset += time.Minute
	s.SetClock(t, *offset)
	store.Forget(b.Key())
	if _, err := b.Acquire(t.Context(), outbound.Cost{1}); err != nil {
		return err
	}
	// Write garbage, and records of more workers than there is room for.
	s.Do(t, "HSET", store.Key(b.Key()), "s", "garbage")
	if _, err := b.State(t.Context()); err != nil {
		return err
	}
	args := []any{"HSET", store.Key(b.Key())}
	for i := range 1100 {
		args = append(args, fmt.Sprint("w", i), packed(1, 1, 1))
	}
	s.Do(t, args...)
	other := outbound.Must(outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{Timeout: time.Minute}), b.Key(), outbound.Limit{Capacity: 10, LeakRate: 1}))
	if err := other.SetLimits(t.Context(), outbound.Limit{Capacity: 20, LeakRate: 1}); err != nil {
		return err
	}
	_, err = other.Acquire(t.Context(), outbound.Cost{1})
	return err
}

func TestTheDocumentedUserHasNoRightThatItDoesNotNeed(t *testing.T) {
	t.Parallel()
	server := redistest.StartWithClock(t)
	var offset time.Duration
	require.NoError(t, everyCommand(t, server, server.Client(t, worker(t, server)), &offset))
	for _, word := range documented(t) {
		if word[0] != '+' || word == "+cluster|slots" || word == "+command" {
			continue
		}
		server.Do(t, "ACL", "DELUSER", documented(t)[0])
		err := everyCommand(t, server, server.Client(t, worker(t, server, word)), &offset)
		var failed *outbound.StoreError
		require.ErrorAs(t, err, &failed, "without %s", word)
		require.Regexp(t, "NOPERM.*'"+word[1:]+"'|The user executing the script can't run this command", err.Error())
		require.False(t, isAway(err))
	}
}
