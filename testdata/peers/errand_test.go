package main

import "testing"

// A measurement has a process of its own, and one that does not exist is an error.
func TestErrand_MeasuresInAProcessOfItsOwn(t *testing.T) {
	s := parked(small)
	got, err := errand{Options: small, Scenario: s.name, Contender: subject}.ownProgram()
	if err != nil || len(got.Values) != len(s.metrics) {
		t.Errorf("got %+v, %v for %d metrics", got, err, len(s.metrics))
	}
	for _, e := range []errand{
		{Options: small, Scenario: s.name, Contender: "none"},
		{Options: small, Scenario: "nothing", Contender: subject},
		{Options: small, Scenario: s.name, Contender: retryable().name}, // retryable does not wait
	} {
		fails(t, e.run(), "no contender")
	}
}
