package virtual

import (
	"testing"
	"time"
)

// A release of Go in which a zero testing.T no longer does shows here.
func TestADayPassesAtOnceAndTheProgramGoesOn(t *testing.T) {
	began := time.Now()
	for range 2 {
		var passed time.Duration
		Run(func() {
			start := time.Now()
			done := make(chan struct{})
			go func() {
				time.Sleep(24 * time.Hour)
				close(done)
			}()
			<-done
			passed = time.Since(start)
		})
		if passed != 24*time.Hour {
			t.Errorf("%v have passed", passed)
		}
	}
	if took := time.Since(began); took > time.Hour {
		t.Errorf("it took %v", took)
	}
}
