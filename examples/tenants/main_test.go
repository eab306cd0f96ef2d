package main

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"testing"
	"testing/synctest"
)

func TestTenants_HaveTheirOwnQuotas(t *testing.T) {
	want := regexp.MustCompile(`^Each of 5000 tenants has a quota of its own\.

4999 quiet ones, 3 calls each  14997 admitted,     0 refused
a noisy one                        3 admitted, 19997 refused
buckets: 5000 of at most 5000

1000 newcomers in one burst        3 admitted,   997 refused
  They share the bucket for all newcomers\.
the same 1\.2 s later            1000 admitted,     0 refused
  Each has replaced an idle tenant\.
buckets: (4\d\d\d|5000), never more than 5000
$`)
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		if err := run(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); !want.MatchString(got) {
			t.Errorf("printed\n%s\nwant\n%s", got, want)
		}
	})
}

func TestInterrupt_IsReported(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, new(bytes.Buffer)); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
}
