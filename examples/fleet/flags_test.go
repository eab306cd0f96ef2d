package main

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
)

func TestArgumentsAreChecked(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"-h"}, 0, "capacity burst + rate * 10 ms + 0.25"},
		{[]string{"more"}, 2, `"more" is one argument too many`},
		{[]string{"-nonsense"}, 2, "not defined"},
		{[]string{"-workers", "0"}, 2, "-workers needs a number from 1 to 1000, not 0"},
		{[]string{"-waiters", "-1"}, 2, "-waiters needs a number from 1 to 1000, not -1"},
		{[]string{"-rate", "NaN"}, 2, "-rate needs a number from 0.01 to 100000, not NaN"},
		{[]string{"-rate", "Inf"}, 2, "-rate needs a number"},
		{[]string{"-burst", "0.5"}, 2, "-burst needs a number from 1 to 1000000, not 0.5"},
		{[]string{"-seconds", "0"}, 2, "-seconds needs a number from 0.5 to 86400, not 0"},
		{[]string{"-kill", "-1"}, 2, "-kill needs a number from 0 to 10000, not -1"},
		{[]string{"-mode", "some"}, 2, `-mode needs all, none, share or shared, not "some"`},
		{[]string{"-api", "localhost:8080"}, 2, "-api needs a URL"},
		{[]string{"-api", "http://user:secret@exa mple.com/"}, 2, "-api needs a URL"},
		{[]string{"-redis", "localhost:6379"}, 2, "-redis needs a URL"},
		{[]string{"-redis", "redis://:secret@exa mple.com"}, 2, "-redis needs a URL"},
	} {
		var out, stderr bytes.Buffer
		status := run(t.Context(), c.args, &out, &stderr)
		if status != c.status || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%q: status %d, want %d and %q:\n%s", c.args, status, c.status, c.says, &stderr)
		}
		if out.Len() > 0 {
			t.Errorf("%q: printed %q", c.args, &out)
		}
		if strings.Contains(stderr.String(), "secret") {
			t.Errorf("%q: the password is shown", c.args)
		}
	}
}

func TestServerOfOthersIsCalledInTheSharedWayUnlessAskedFor(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []mode
	}{
		{nil, allModes},
		{[]string{"-mode", "all"}, allModes},
		{[]string{"-mode", "share"}, []mode{share}},
		{[]string{"-api", "http://localhost/"}, []mode{shared}},
		{[]string{"-api", "http://localhost/", "-mode", "all"}, allModes},
		{[]string{"-api", "http://localhost/", "-mode", "none"}, []mode{none}},
	} {
		p, err := arguments(c.args, io.Discard)
		if err != nil || !slices.Equal(p.Modes, c.want) {
			t.Errorf("%q: %v, %v", c.args, p.Modes, err)
		}
	}
}

func TestSeedIsKeptOrNew(t *testing.T) {
	if p, err := arguments([]string{"-seed", "5"}, io.Discard); err != nil || p.Seed != 5 {
		t.Errorf("%d, %v", p.Seed, err)
	}
	seen := map[uint64]bool{}
	for range 10 {
		p, err := arguments(nil, io.Discard)
		if err != nil || p.Seed == 0 {
			t.Fatalf("%d, %v", p.Seed, err)
		}
		seen[p.Seed] = true
	}
	if len(seen) < 2 {
		t.Error("ten runs have the same seed")
	}
}
