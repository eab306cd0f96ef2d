package profile

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// errorIf reports a fault, and the test goes on.
func errorIf(t testing.TB, fault bool, format string, args ...any) {
	if fault {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// numbered returns a Signal of n policies, whose names are their numbers.
func numbered(n int) (s Signal) {
	for i := range n {
		p := NewPolicy(fmt.Sprint(i))
		p.Limit = 1
		s.Add(p)
	}
	return s
}

// namesOf returns the names of a Signal's policies.
func namesOf(s *Signal) (all []string) {
	for _, p := range s.Policies() {
		all = append(all, p.Name)
	}
	return all
}

// A copy of a Signal does not get policies that are added later.
func TestSignal_CopyKeepsItsPolicies(t *testing.T) {
	for _, n := range []int{0, 1, 4, 5, 20} {
		s, want := numbered(n), numbered(n)
		c := s
		s.Add(Policy{Name: "late", Remaining: 1, Limit: None, Reset: None})
		errorIf(t, !slices.Equal(namesOf(&c), namesOf(&want)) || len(s.Policies()) != n+1,
			"the copy of %d policies has %q; then there are %d", n, namesOf(&c), len(s.Policies()))
	}
}

// drop leaves all other policies in order.
func TestSignal_DropKeepsTheOthers(t *testing.T) {
	for _, n := range []int{1, 4, 6} {
		for i := range n {
			s := numbered(n)
			want := slices.Delete(namesOf(&s), i, i+1)
			s.drop(i)
			errorIf(t, !slices.Equal(namesOf(&s), want), "without %d of %d: %q", i, n, namesOf(&s))
		}
	}
}

// The policy that binds does not depend on the order of the policies.
func TestSignal_BindingDoesNotDependOnTheOrder(t *testing.T) {
	policy := func(name string, limit, remaining float64, reset time.Duration) Policy {
		p := NewPolicy(name)
		p.Limit, p.Remaining, p.Reset = limit, remaining, reset
		return p
	}
	inFlight, rate := policy("in flight", 5, 0, time.Hour), policy("rate", 0.5, None, None)
	inFlight.Kind, rate.Kind = InFlight, PerSecond
	inOrder := []Policy{ // the one that binds more comes first
		policy("empty, long", 100, 0, time.Hour),
		policy("empty, short", 100, 0, time.Minute),
		policy("empty, unknown", None, 0, None),
		inFlight,
		policy("half", 10, 5, time.Minute),
		policy("half, sooner", 10, 5, time.Second),
		policy("most", 10, 9, None),
		policy("few", None, 3, None),
		policy("many", None, 300, time.Hour),
		policy("no more than a limit", 10, None, time.Hour),
		policy("a limit", 10, None, None),
		rate,
	}
	for i := range inOrder {
		for j := range inOrder {
			var s Signal
			s.push(inOrder[j])
			s.push(inOrder[i])
			if want := inOrder[min(i, j)].Name; s.Binding().Name != want {
				t.Errorf("of %q and %q binds %q", inOrder[i].Name, inOrder[j].Name, s.Binding().Name)
			}
		}
	}
}

// The wait of a policy ends at its reset, or up to a second later if that is a point in time.
func TestPolicy_Wait(t *testing.T) {
	for _, c := range []struct {
		p    Policy
		want time.Duration
	}{
		{NewPolicy(""), 0}, {Policy{}, 0}, {Policy{Reset: time.Second}, time.Second},
		{Policy{Reset: time.Second, Absolute: true}, 2 * time.Second}, {Policy{Absolute: true}, time.Second}, {Policy{Reset: None, Absolute: true}, 0},
	} {
		got := c.p.Wait()
		errorIf(t, got != c.want, "%+v: %v, want %v", c.p, got, c.want)
	}
}

// Each Reason has a name.
func TestReason_String(t *testing.T) {
	for r, want := range map[Reason]string{Unknown: "unknown", Rate: "rate", Quota: "quota", Concurrency: "concurrency", Overload: "overload", Lock: "lock", 99: "unknown"} {
		errorIf(t, r.String() != want, "%d: %q, want %q", r, r, want)
	}
}

// Several names may mean one profile, but no name means two. Headers of the package's own profiles are found without
// allocation only in the spelling that responses have.
func TestProfiles_NamesAreUniqueAndHeadersCanonical(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range builtin {
		errorIf(t, p.Name == "" || seen[plain(p.Name)], "%q is there twice", p.Name)
		seen[plain(p.Name)] = true
		for _, f := range p.Fields {
			got := http.CanonicalHeaderKey(f.Header)
			errorIf(t, got != f.Header, "%s: %q is %q in responses", p.Name, f.Header, got)
		}
	}
	for _, p := range builtin {
		for _, name := range strings.Fields(p.also) {
			errorIf(t, seen[name] || plain(name) != name,
				"the name %q of %s is a name already, or none", name, p.Name)
			seen[name] = true
		}
	}
}

// README.md says of how many APIs the package has a profile.
func TestProfiles_READMECountsThem(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	errorIf(t, err != nil, "%v", err)
	want := fmt.Sprintf("knows the rules of %d APIs", len(builtin)-1)
	errorIf(t, !strings.Contains(string(text), want), "README.md does not say that the package %s", want) // without Generic
}
