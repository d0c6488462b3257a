package oncall

import (
	"reflect"
	"testing"

	"github.com/herdshield/shield"
)

// reading is what a shield says after n seconds, of which each has admitted 10 requests and
// rejected 3.
func reading(n uint64) *Facts {
	return &Facts{
		Admitted: 10 * n, Rejected: map[string]uint64{"capacity": 3 * n}, Concurrency: 64, InFlight: int(n % 7), Queue: &Queue{Length: 1},
		Classes: []shield.ClassStats{{Name: "high", Admitted: 10 * n}, {Name: "low", Rejected: 2 * n, Observed: n}},
	}
}

func TestHistoryOfTenMinutes(t *testing.T) {
	var h History
	if s := h.Since(0); s.Count != 0 || len(s.Columns) != 0 {
		t.Errorf("a new History has %+v", s)
	}
	for n := uint64(1); n <= 1700; n++ {
		h.Observe(n, reading(n))
	}
	s := h.Since(0)
	if s.Count != 600 || s.From != 1101 || s.Missing != nil {
		t.Fatalf("%d samples from %d, missing %v; want 600 from 1101", s.Count, s.From, s.Missing)
	}
	for i := range s.Count {
		if s.Columns["admitted"][i] != 10 || s.Columns["rejected.capacity"][i] != 3 || s.Columns["in_flight"][i] != uint32((1101+i)%7) || s.Columns["limit"][i] != 64 {
			t.Fatalf("sample %d: %v", i, s.Columns)
		}
	}
	if s.Columns["class.high.admitted"][5] != 10 || s.Columns["class.low.rejected"][5] != 3 || s.Columns["queue"][0] != 1 {
		t.Errorf("classes: %v", s.Columns)
	}
	if len(s.Columns) != 7 {
		t.Errorf("%d columns; want none that is 0: %v", len(s.Columns), s.Columns)
	}
	if s := h.Since(1700); s.Count != 1 || s.From != 1700 || s.Columns["in_flight"][0] != 1700%7 {
		t.Errorf("the last second is %+v", s)
	}
	if s := h.Since(9999); s.Count != 0 {
		t.Errorf("the future is %+v", s)
	}
	if m := h.Lately(10); m.Admitted != 10 || m.Arrivals != 13 || m.Rejected["capacity"] != 3 || len(m.Observed) != 0 {
		t.Errorf("lately: %+v", m)
	}
}

func TestHistoryWithGapsAndRestarts(t *testing.T) {
	var h History
	h.Observe(5, reading(1))
	h.Observe(6, reading(2))
	h.Observe(6, reading(3))               // a second app, in a reload: its ten are in the next sample
	h.Observe(10, reading(7))              // three seconds are missed
	h.Observe(11, reading(1))              // all counts began anew
	h.Observe(3, reading(2))               // likewise, in a second that has passed
	h.Observe(12, &Facts{Admitted: 1_000}) // without classes
	s := h.Since(0)
	if want := [][2]int{{2, 3}}; s.From != 5 || s.Count != 8 || !reflect.DeepEqual(s.Missing, want) {
		t.Errorf("from %d %d samples without %v; want 5, 8, %v", s.From, s.Count, s.Missing, want)
	}
	if want := ([]uint32{10, 10, 0, 0, 0, 13, 10, 990}); !reflect.DeepEqual(s.Columns["admitted"], want) {
		t.Errorf("admitted %v; want %v", s.Columns["admitted"], want)
	}
	for name := range s.Columns {
		if len(name) > 6 && name[:6] == "class." {
			t.Errorf("there is a column %s, of a class that is gone", name)
		}
	}
	// A gap that is longer than the ring leaves nothing of what was before.
	h.Observe(5000, &Facts{Admitted: 1_000 + 4988*7})
	s = h.Since(0)
	if s.From != 5000 || s.Count != 1 || s.Columns["admitted"][0] != 7 {
		t.Errorf("after a long gap: %+v", s)
	}
	if m := h.Lately(10); m.Admitted != 7 {
		t.Errorf("lately: %+v", m)
	}
	h.Observe(5001, &Facts{Admitted: 1 << 60})
	if s := h.Since(5001); s.Columns["admitted"][0] != 1<<32-1 {
		t.Errorf("too much is %d", s.Columns["admitted"][0])
	}
}

func TestNotesAreBounded(t *testing.T) {
	var h History
	h.Observe(1, &Facts{})
	long := string(make([]byte, 1000))
	for i := range uint64(1000) {
		h.Note(i/10, Warn, long)
	}
	h.NoteLimit(99, "limit 4 → 5")
	s := h.Since(0)
	if len(s.Events) != 64 || s.Events[0].ID != 937 || s.Events[63].ID != 1000 || len(s.Limits) != 1 {
		t.Errorf("%d notes from %d on, %d changes", len(s.Events), s.Events[0].ID, len(s.Limits))
	}
	if n := len(s.Events[0].Text); n != maxNote {
		t.Errorf("a text of %d bytes", n)
	}
	if s := h.Since(99); len(s.Events) != 10 || s.Events[0].Seq != 99 {
		t.Errorf("from 99 on: %+v", s.Events)
	}
}
