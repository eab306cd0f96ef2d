package redisstore_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// said is an error with which a server answers.
type said string

func (s said) Error() string { return string(s) }
func (said) RedisError()     {}

// episode is the outcome for a server that fails with one error for a while, and then works.
type episode struct {
	told  []leak.StoreEventKind
	trips int
	errs  []error
}

// runEpisode starts a caller every 10 ms, on ten keys. The server answers with err for 3 s, and
// works for 3 s more.
func runEpisode(t *testing.T, err error) *episode {
	var p episode
	var mu sync.Mutex // for the race detector: a bubble mostly runs one caller at a time
	began := time.Now()
	store := bubbleStore(t, redisstore.Config{Observe: func(e leak.StoreEvent) {
		mu.Lock()
		defer mu.Unlock()
		p.told = append(p.told, e.Kind)
	}}, func(cmd redis.Cmder, _ func() error) error {
		mu.Lock()
		p.trips++
		mu.Unlock()
		time.Sleep(time.Millisecond)
		if time.Since(began) < 3*time.Second {
			cmd.SetErr(err)
			return err
		}
		return grant(cmd)
	})
	var all sync.WaitGroup
	for i := range 600 {
		b := outbound.Must(outbound.NewSharedBucket(store, string(rune('a'+i%10)), reset))
		all.Go(func() {
			var err error
			if i%3 == 0 { // a look gets the same error
				_, err = b.State(context.Background())
			} else {
				_, err = b.Acquire(context.Background(), outbound.Cost{1})
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				p.errs = append(p.errs, err)
			}
		})
		time.Sleep(10 * time.Millisecond)
	}
	all.Wait()
	time.Sleep(time.Minute) // until the pipelines' goroutines end
	synctest.Wait()
	return &p
}

func TestTroubleThatAWaitCuresIsAwayAndEndsWithABack(t *testing.T) {
	for _, err := range []error{
		said("LOADING Redis is loading the dataset in memory"), said("READONLY You can't write against a read only replica."),
		said("MASTERDOWN Link with MASTER is down"), said("CLUSTERDOWN The cluster is down"), said("BUSY Redis is busy"),
		said("NOREPLICAS Not enough good replicas to write."), said("OOM command not allowed when used memory > 'maxmemory'."),
		said("MISCONF Redis is configured to save RDB snapshots"), said("ERR max number of clients reached"),
		said("ERR Error running script (call to f_1): @user_script:78: @user_script: 78: -OOM command not allowed"),
		said("ERR Error running script (call to f_1): @user_script:78: @user_script: 78: -READONLY You can't write"),
		redis.ErrPoolTimeout, io.EOF, errors.New("dial tcp: connection refused"),
	} {
		t.Run(err.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := runEpisode(t, err)
				require.NotEmpty(t, p.errs)
				for _, got := range p.errs {
					require.ErrorIs(t, got, outbound.ErrAway)
					require.ErrorIs(t, got, err)
				}
				require.Equal(t, []leak.StoreEventKind{leak.EventDown, leak.EventUp}, p.told)
				// 300 calls are granted. In the three bad seconds each of the four pipelines has
				// one request that tries the server, with pauses, however many callers come.
				require.Less(t, p.trips, 300+4*3*60)
			})
		})
	}
}

func TestTroubleThatNoWaitCuresIsToldOnceAndIsNotAway(t *testing.T) {
	for _, err := range []error{
		said("NOAUTH Authentication required."), said("WRONGPASS invalid username-password pair or user is disabled."),
		said("NOPERM this user has no permissions to run the 'evalsha' command"), said("ERR The user executing the script can't run this command or subcommand script: 1"),
		said("ERR Error running script (call to f_1): @user_script:78: The user executing the script can't run this command"),
		said("ERR AUTH <password> called without any password configured for the default user."),
	} {
		t.Run(err.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := runEpisode(t, err)
				require.Greater(t, len(p.errs), 250) // each call at once
				for _, got := range p.errs {
					require.NotErrorIs(t, got, outbound.ErrAway)
					require.ErrorIs(t, got, err)
				}
				require.Equal(t, []leak.StoreEventKind{leak.EventDenied}, p.told)
			})
		})
	}
}
