package fallback

import (
	"errors"
	"testing"
	"time"
)

func TestABreakerGoesThroughItsStates(t *testing.T) {
	broken := errors.New("broken")
	const second = time.Second
	var b breaker
	want := func(what string, s state) {
		t.Helper()
		if !b.in(s) {
			t.Errorf("%s: state %d, want %d", what, b.state.Load(), s)
		}
	}
	want("at first", there)
	b.settle(0, 0)
	want("with nothing to settle", there)
	if !b.leave(broken, second) || b.leave(errors.New("another"), 2*second) {
		t.Error("it is left once")
	}
	want("after leaving", away)
	if b.cause != broken || b.since != second {
		t.Errorf("since %v: %v", b.since, b.cause)
	}
	b.settle(time.Hour, 0)
	want("however long it is away", away)
	b.comeBack(3*second, second)
	want("after coming back", returning)
	b.settle(4*second-1, 0)
	want("during the pause", returning)
	b.settle(4*second, 1)
	want("with a key to charge", returning)
	b.settle(4*second, 0)
	want("with all charged", there)
	b.leave(broken, 5*second)
	b.comeBack(6*second, second)
	if !b.leave(broken, 6*second) {
		t.Error("it is left during the return as well")
	}
	want("after leaving during the return", away)
}

func TestTheTimeBetweenTriesDoublesEachTime(t *testing.T) {
	const second = time.Second
	var b breaker
	tries := func(at time.Duration, most ...time.Duration) {
		t.Helper()
		for i, most := range most {
			if in := b.postpone(at); in < most/2 || in >= most || b.nextTry != at+in {
				t.Errorf("try %d in %v, at %v; want less than %v", i, in, b.nextTry, most)
			}
		}
	}
	b.leave(nil, 0)
	tries(0, second/10, second/5, 2*second/5, 4*second/5, second, second)
	b.comeBack(10*second, 0)
	b.leave(nil, 12*second)
	tries(12*second, second, second)
	b.comeBack(20*second, 0)
	b.leave(nil, 22*second+1)
	tries(22*second, second/10, second/5)
	b.comeBack(30*second, 0)
	b.leave(nil, 31*second)
	tries(31*second, 2*second/5, 4*second/5)
}
