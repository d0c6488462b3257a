package oncall

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"
	"unsafe"
)

func TestClock(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name  string
		calls []time.Duration
		want  string
	}{
		{"regular", []time.Duration{7 * ms, 1007 * ms, 2007 * ms, 3007 * ms}, "1 2 3 4"},
		{"a little early and late", []time.Duration{500 * ms, 1499 * ms, 2502 * ms, 3497 * ms, 4600 * ms, 5500 * ms}, "1 2 3 4 5 6"},
		{"another caller in the same second", []time.Duration{0, 1000 * ms, 1300 * ms, 2000 * ms, 2300 * ms, 3000 * ms}, "1 2 2 3 3 4"},
		{"missed seconds", []time.Duration{0, 1000 * ms, 4200 * ms, 5200 * ms}, "1 2 5 6"},
		{"back", []time.Duration{9000 * ms, 10_000 * ms, 2000 * ms, 3000 * ms}, "1 2 3 4"},
	} {
		var clock Clock
		got := ""
		for _, now := range c.calls {
			got += fmt.Sprint(clock.Tick(now), " ")
		}
		if got != c.want+" " {
			t.Errorf("%s: %s; want %s", c.name, got, c.want)
		}
	}
}

// After a reload another goroutine calls, at another time within the second. No second is
// left out or counted twice but at the change.
func TestClockFollows(t *testing.T) {
	for phase := time.Duration(0); phase < time.Second; phase += 50 * time.Millisecond {
		var clock Clock
		now := time.Duration(0)
		for range 10 {
			now += time.Second
			clock.Tick(now)
		}
		before := clock.Tick(now + phase)
		for i := range uint64(100) {
			now += time.Second
			jitter := time.Duration(i*7919%21) * time.Millisecond
			got := clock.Tick(now + phase + jitter)
			if got < before+i || got > before+i+2 {
				t.Fatalf("phase %v: call %d is second %d after %d", phase, i, got, before)
			}
		}
		if seq, ago := clock.Now(now + phase + 300*time.Millisecond); seq == 0 || ago > 300*time.Millisecond || ago < 279*time.Millisecond {
			t.Errorf("second %d, %v ago", seq, ago)
		}
	}
	var never Clock
	if seq, _ := never.Now(time.Hour); seq != 0 {
		t.Errorf("a Clock without a call is at %d", seq)
	}
}

var names = []string{"none", "quota", "capacity"}

// reading is what a shield says after n seconds, of which each has admitted 10 requests and
// refused 3.
func reading(n uint64) Reading {
	return Reading{
		Admitted: 10 * n, Refused: [MaxReasons]uint64{2: 3 * n}, Limit: 64, InFlight: int(n % 7), KeptShare: 1,
		Classes: []ClassReading{{"high", 10 * n, 0}, {"low", 0, 3 * n}},
	}
}

func one(t *testing.T, s Samples, column string) Column {
	t.Helper()
	if len(s.Columns[column]) != s.Count {
		t.Fatalf("%d values of %s; want %d", len(s.Columns[column]), column, s.Count)
	}
	return s.Columns[column]
}

func TestHistoryOfTenMinutes(t *testing.T) {
	var h History
	if s := h.Since(0, names); s.Count != 0 || len(s.Columns) != 0 {
		t.Errorf("a new History has %+v", s)
	}
	for n := uint64(1); n <= 1700; n++ {
		h.Observe(n, reading(n))
	}
	s := h.Since(0, names)
	if s.Count != 600 || s.From != 1101 || s.Missing != nil {
		t.Fatalf("%d samples from %d, missing %v; want 600 from 1101", s.Count, s.From, s.Missing)
	}
	for i := range s.Count {
		if s.Columns["admitted"][i] != 10 || s.Columns["refused.capacity"][i] != 3 || s.Columns["in_flight"][i] != uint32((1101+i)%7) || s.Columns["limit"][i] != 64 {
			t.Fatalf("sample %d: %v", i, s.Columns)
		}
	}
	if one(t, s, "class.high.admitted")[5] != 10 || one(t, s, "class.low.refused")[5] != 3 || one(t, s, "kept_permille")[0] != 1000 {
		t.Errorf("classes: %v", s.Columns)
	}
	if len(s.Columns) != 7 {
		t.Errorf("%d columns; want none that is 0: %v", len(s.Columns), s.Columns)
	}
	if s := h.Since(1700, names); s.Count != 1 || s.From != 1700 || s.Columns["in_flight"][0] != 1700%7 {
		t.Errorf("the last second is %+v", s)
	}
	if s := h.Since(9999, names); s.Count != 0 {
		t.Errorf("the future is %+v", s)
	}
	if m := h.Lately(10); m.Samples != 10 || m.Admitted != 10 || m.Refused[2] != 3 {
		t.Errorf("lately: %+v", m)
	}
	// A shield that rests for ten minutes takes no columns.
	last := reading(1700)
	for n := uint64(1701); n <= 2301; n++ {
		h.Observe(n, last)
	}
	for i := range h.columns {
		if h.columns[i].values != nil {
			t.Errorf("column %s is still stored", h.name(i, names))
		}
	}
	h.Observe(2302, reading(1701))
	if s := h.Since(2300, names); !reflect.DeepEqual(s.Columns["admitted"], Column{0, 0, 10}) {
		t.Errorf("after a rest: %v", s.Columns["admitted"])
	}
}

func TestHistoryWithGapsAndRestarts(t *testing.T) {
	var h History
	h.Observe(5, reading(1))
	h.Observe(6, reading(2))
	h.Observe(6, reading(3))                // a second app, in a reload
	h.Observe(10, reading(7))               // three seconds are missed
	h.Observe(11, reading(1))               // all counts began anew
	h.Observe(3, reading(2))                // a second that has passed counts as the last
	h.Observe(12, Reading{Admitted: 1_000}) // without classes
	s := h.Since(0, names)
	if want := [][2]int{{2, 3}}; s.From != 5 || s.Count != 8 || !reflect.DeepEqual(s.Missing, want) {
		t.Errorf("from %d %d samples without %v; want 5, 8, %v", s.From, s.Count, s.Missing, want)
	}
	if want := (Column{10, 20, 0, 0, 0, 10, 20, 980}); !reflect.DeepEqual(s.Columns["admitted"], want) {
		t.Errorf("admitted %v; want %v", s.Columns["admitted"], want)
	}
	for name := range s.Columns {
		if len(name) > 6 && name[:6] == "class." {
			t.Errorf("there is a column %s, of a class that is gone", name)
		}
	}
	// A gap that is longer than the ring leaves nothing of what was before.
	h.Observe(5000, Reading{Admitted: 1_000 + 4988*7})
	s = h.Since(0, names)
	if s.Count != 600 || !reflect.DeepEqual(s.Missing, [][2]int{{0, 599}}) || s.Columns["admitted"][599] != 7 || s.Columns["admitted"][0] != 0 {
		t.Errorf("after a long gap: %d samples without %v, the last admitted %d", s.Count, s.Missing, s.Columns["admitted"][599])
	}
	if m := h.Lately(10); m.Samples != 1 || m.Admitted != 7 {
		t.Errorf("lately: %+v", m)
	}
	h.Observe(5001, Reading{Admitted: 1 << 60})
	if s := h.Since(5001, names); s.Columns["admitted"][0] != 1<<32-1 {
		t.Errorf("too much is %d", s.Columns["admitted"][0])
	}
}

func TestColumnInJSON(t *testing.T) {
	for text, c := range map[string]Column{"7": {7, 7, 7}, "[1,20,3]": {1, 20, 3}, "[]": {}, "0": {0}} {
		b, err := json.Marshal(c)
		if err != nil || string(b) != text {
			t.Errorf("%v is %s, %v; want %s", []uint32(c), b, err, text)
		}
		var back Column
		if err := json.Unmarshal(b, &back); err != nil || text == "[1,20,3]" && !reflect.DeepEqual(back, c) || text == "7" && back[0] != 7 {
			t.Errorf("%s is read as %v, %v", text, []uint32(back), err)
		}
	}
}

func TestNotesAreBounded(t *testing.T) {
	var h History
	h.Observe(1, Reading{})
	long := string(make([]byte, 1000))
	for i := range uint64(1000) {
		h.Note(i/10, Warn, long)
	}
	h.NoteLimit(99, Plain, "limit 4 → 5")
	s := h.Since(0, names)
	if len(s.Events) != 64 || s.Events[0].ID != 937 || s.Events[63].ID != 1000 || len(s.Limits) != 1 {
		t.Errorf("%d notes from %d on, %d changes", len(s.Events), s.Events[0].ID, len(s.Limits))
	}
	if n := len(s.Events[0].Text); n != maxNote {
		t.Errorf("a text of %d bytes", n)
	}
	if s := h.Since(99, names); len(s.Events) != 10 || s.Events[0].Seq != 99 {
		t.Errorf("from 99 on: %+v", s.Events)
	}
}

// A History whose columns all vary takes no more than MaxBytes.
func TestHistoryIsBounded(t *testing.T) {
	var h History
	long := string(make([]byte, maxNote))
	for n := uint64(1); n <= 5000; n++ {
		r := Reading{Admitted: n * n, Kept: n * n, NoShow: n * n, Late: n * n, Broken: n * n, Failed: n * n}
		for i := range r.Refused {
			r.Refused[i], r.Observed[i] = n*n, n*n
		}
		for i := range 3 * MaxClasses {
			r.Classes = append(r.Classes, ClassReading{fmt.Sprint("class ", i), n * n, n * n})
		}
		v := int(n)
		r.Backlog, r.Deferred, r.InFlight, r.Limit, r.Queue, r.Held, r.Replicas = time.Duration(v)*time.Second, v, v, v, v, v, v
		r.KeptShare, r.Paused, r.Overloaded, r.Herd = float64(v), v%2 == 0, v%2 == 0, float64(v)
		h.Observe(n, r)
		h.Note(n, Bad, long)
		h.NoteLimit(n, Bad, long)
	}
	bytes, stored := int(unsafe.Sizeof(h)), 0
	for _, c := range h.columns {
		if c.values != nil {
			stored++
		}
		bytes += cap(c.values) * int(unsafe.Sizeof(c.values[0]))
	}
	for _, j := range []*journal{&h.events, &h.limits} {
		bytes += cap(j.notes) * int(unsafe.Sizeof(Note{}))
		for _, n := range j.notes {
			bytes += len(n.Text)
		}
	}
	for _, c := range h.classes {
		bytes += int(unsafe.Sizeof(c)) + len(c.Name)
	}
	if stored != columns {
		t.Errorf("%d columns are stored; want all %d", stored, columns)
	}
	if bytes > MaxBytes || MaxBytes > 256<<10 {
		t.Errorf("it takes %d bytes, at most %d by its own account; want at most 256 KB", bytes, MaxBytes)
	}
	var idle History
	for n := uint64(1); n <= 700; n++ {
		idle.Observe(n, Reading{Limit: 64, KeptShare: 1, Admitted: 5})
	}
	for i := range idle.columns {
		if i > 0 && idle.columns[i].values != nil {
			t.Errorf("column %d of an idle shield is stored", i)
		}
	}
	t.Logf("at most %d bytes, %d of an idle shield", bytes, unsafe.Sizeof(idle))
}

func BenchmarkObserve(b *testing.B) {
	var h History
	n := uint64(0)
	for b.Loop() {
		n++
		h.Observe(n, reading(n))
	}
}
