package leak

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

// A state that was stored before there were rows of refusals has no row.
func TestAStateFromBeforeRowsOfRefusalsIsOneWithNone(t *testing.T) {
	k := &storedKey{T: t}
	l := Limit{Capacity: 1, Rate: 10 / 1.01}
	c := k.book(0, 0, Units{1}, l)
	k.do(1, Op{Reports: []Report{{Kind: Succeeded, Epoch: c.Epoch}}}, l)
	if b, err := json.Marshal(k.Stored); err != nil || strings.Contains(string(b), "Row") {
		t.Errorf("never refused: %s (%v)", b, err)
	}
	k.do(1, Op{Reports: []Report{{Kind: Refused, Charge: &c, Epoch: c.Epoch}}}, l)
	b, err := json.Marshal(k.Stored)
	if err != nil {
		t.Fatal(err)
	}
	var again Stored
	if err := json.Unmarshal(b, &again); err != nil || again.State != k.State || again.State.Row.Refused != 1 {
		t.Errorf("%+v (%v), want %+v", again.State, err, k.State)
	}
	var fields struct{ State map[string]json.RawMessage }
	if err := json.Unmarshal(b, &fields); err != nil {
		t.Fatal(err)
	}
	delete(fields.State, "Row")
	if b, err = json.Marshal(fields); err != nil {
		t.Fatal(err)
	}
	var old Stored
	if err := json.Unmarshal(b, &old); err != nil || old.State.Row != (Row{}) || old.State.Speed != 0.9 {
		t.Fatalf("%+v (%v)", old.State, err)
	}
	old.Limits = []Limit{l}
	k.Stored = old
	c = k.book(3, 0, Units{1}, l)
	k.do(4, Op{Reports: []Report{{Kind: Succeeded, Epoch: c.Epoch}, {Kind: Refused, Charge: &c, Epoch: c.Epoch}}}, l)
	if r := k.State.Row; r.Refused != 1 || k.State.Speed > 0.7*0.91 {
		t.Errorf("speed %v, %+v", k.State.Speed, r)
	}
}

func TestAStoredKeySurvivesJSONWholly(t *testing.T) {
	k := &storedKey{T: t}
	k.book(0, 0, Units{1, 2}, Limit{Capacity: 1, Rate: 10 / 1.01, Window: time.Second}, Limit{Capacity: 3, Rate: 1. / 3, Unit: 1})
	k.book(20, 0, Units{1, 2}, Limit{Capacity: 1, Rate: 7 / 60.01, Window: time.Minute}, Limit{Capacity: 5, Rate: 1. / 7, Name: "other"})
	k.do(20, Op{Reports: []Report{{Kind: Refused, Epoch: k.State.Epoch}}}, Limit{Capacity: 1, Rate: 10 / 1.01, Window: time.Second})
	data, err := json.Marshal(k.Stored)
	if err != nil {
		t.Fatal(err)
	}
	var again Stored
	if err := json.Unmarshal(data, &again); err != nil || !reflect.DeepEqual(again, k.Stored) || len(again.Others) == 0 {
		t.Errorf("%+v, %v, want %+v", again, err, k.Stored)
	}
}
