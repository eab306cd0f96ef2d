#!/usr/bin/env bash
# Guess: tasks of asynq with ProcessAt 100 ms apart start some 100 ms apart, perhaps a second late: that spreads the calls
#   of a batch over an API's 10 per second. A RetryDelayFunc of 1 s tries again after 1 to 2 s.
# Seen: they start in bursts of some 50, each within a fraction of a second, every 5 s: the server looks for due tasks each
# DelayedTaskCheckInterval. A retry after 1 s comes after 5 s.
# It means: spacing by ProcessAt gives an API five times its 10 per second. Tasks must be paced when they start.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get github.com/hibiken/asynq@v0.26.0 github.com/alicebob/miniredis/v2@v2.40.0 2>/dev/null
cat >finding_test.go <<'GO'
package finding

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
)

func Test(t *testing.T) {
	redis := asynq.RedisClientOpt{Addr: miniredis.RunT(t).Addr()}
	client := asynq.NewClient(redis)
	defer client.Close()
	var mu sync.Mutex
	var calls, tries []time.Time
	server := asynq.NewServer(redis, asynq.Config{
		Concurrency: 100, LogLevel: asynq.FatalLevel,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Second },
	})
	if err := server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		mu.Lock()
		defer mu.Unlock()
		if task.Type() == "retry" {
			tries = append(tries, time.Now())
			return errors.New("503")
		}
		calls = append(calls, time.Now())
		return nil
	})); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	for i := range 100 {
		if _, err := client.Enqueue(asynq.NewTask("call", nil), asynq.ProcessAt(begin.Add(time.Duration(i+1)*100*time.Millisecond))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Enqueue(asynq.NewTask("retry", nil)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(17 * time.Second)
	server.Shutdown()
	worst := 0
	for i := range calls {
		n := 0
		for _, at := range calls[i:] {
			if at.Before(calls[i].Add(time.Second)) {
				n++
			}
		}
		worst = max(worst, n)
	}
	if len(calls) != 100 || worst < 30 || len(tries) < 3 || tries[2].Sub(tries[1]) < 4*time.Second {
		t.Fatalf("%d calls, at most %d in a second, %d tries", len(calls), worst, len(tries))
	}
	t.Logf("asynq v0.26.0, 100 tasks 100 ms apart: up to %d start in one second; a retry of 1 s comes after %.0f s", worst, tries[2].Sub(tries[1]).Seconds())
}
GO
timeout 150 go test -v -count=1 . | grep -v '^=== '
