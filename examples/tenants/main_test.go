package main

import (
	"testing"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

// Only the calls of the noisy tenant are refused. Newcomers share a bucket, and later replace idle
// tenants. An interrupt is an error.
func TestProgram_TenantsHaveTheirOwnQuotas(t *testing.T) {
	exampletest.Output(t, run, `^Each of 5000 tenants has a quota of its own\.

4999 quiet ones, 3 calls each  14997 admitted,     0 refused
a noisy one                        3 admitted, 19997 refused
buckets: 5000 of at most 5000

1000 newcomers in one burst        3 admitted,   997 refused
  They share the bucket for all newcomers\.
the same 1\.2 s later            1000 admitted,     0 refused
  Each has replaced an idle tenant\.
buckets: (4\d\d\d|5000), never more than 5000
$`)
	exampletest.Interrupt(t, 0, run)
}
