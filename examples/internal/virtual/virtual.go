// Package virtual runs a part of an ordinary program in virtual time, in which hours pass in
// moments.
package virtual

import (
	"testing"
	"testing/synctest"
)

// Run runs f in a testing/synctest bubble, and returns when f and all goroutines that it has
// started are over. What f uses has to be made by f.
//
// It is for examples only. Synctest is made for tests, and asks for a *testing.T. Nothing
// promises that a zero one does, but that of Go 1.26 does, as long as nobody uses it. The other
// ways are worse: testing.Main prints PASS and ends the program. A panic of f ends the program
// as any other, with a second panic of package testing below it. A program of your own has such
// code in a test: see outboundtest.Load.
func Run(f func()) {
	synctest.Test(new(testing.T), func(*testing.T) { f() })
}
