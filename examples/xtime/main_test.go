package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgram_OnlyTheBucketKeepsThePause(t *testing.T) {
	for i, want := range []struct {
		least, most int32 // calls refused
		took        time.Duration
	}{
		{36, 41, 2950 * time.Millisecond},
		{36, 41, 2950 * time.Millisecond},
		{1, callers, 4950 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			answered, refused, err := call(t.Context(), &http.Client{Transport: clients[i].of(newAPI())})
			if took := time.Since(start); err != nil || answered+refused != requests || refused < want.least || refused > want.most || took < want.took || took > want.took+time.Second {
				t.Errorf("%s: %d answered and %d refused in %v, %v", clients[i].name, answered, refused, took, err)
			}
			time.Sleep(time.Second)
		})
	}
}

func TestInterrupt_EndsTheProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		start := time.Now()
		if err := run(ctx, io.Discard); !errors.Is(err, context.Canceled) || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		time.Sleep(time.Second)
	})
}

func TestProgram_PrintsALineForEachWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		if err := run(t.Context(), &out); err != nil || bytes.Count(out.Bytes(), []byte("\n")) != 4+len(clients) {
			t.Errorf("%v:\n%s", err, &out)
		}
		time.Sleep(time.Second)
	})
}
