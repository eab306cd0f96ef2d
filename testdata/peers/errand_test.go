package main

import (
	"strings"
	"testing"
)

func TestErrand_MeasuresInAProcessOfItsOwn(t *testing.T) {
	s := parked(small)
	got, err := errand{Options: small, Scenario: s.name, Contender: subject}.ownProgram()
	if err != nil || len(got.Values) != len(s.metrics) {
		t.Errorf("got %+v, %v for %d metrics", got, err, len(s.metrics))
	}
	for _, e := range []errand{
		{Options: small, Scenario: s.name, Contender: "nobody"},
		{Options: small, Scenario: "nothing", Contender: subject},
		{Options: small, Scenario: s.name, Contender: retryable().name}, // retryable does not wait
	} {
		if err := e.run(); err == nil || !strings.Contains(err.Error(), "no contender") {
			t.Errorf("%q for %q: error %v", e.Scenario, e.Contender, err)
		}
	}
}
