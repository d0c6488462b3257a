package oncall

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	// Seconds is how many samples a History keeps: ten minutes, one a second.
	Seconds = 600

	// MaxReasons is how many reasons for a refusal a History tells apart, and MaxClasses
	// how many classes.
	MaxReasons = 9
	MaxClasses = 16
)

// A Reading is what a shield has counted so far, and what is so now. It need not be of one
// moment.
type Reading struct {
	// Counts, which grow. A count that is below that of the Reading before began anew.
	Admitted           uint64
	Refused, Observed  [MaxReasons]uint64 // by reason
	Kept, NoShow, Late uint64             // appointments by what became of them
	Broken             uint64
	Failed             uint64         // admitted requests that the backend did not serve
	Classes            []ClassReading // those beyond MaxClasses do not count

	// The present state.
	Backlog    time.Duration // until the last appointment
	Deferred   int           // refused clients without an appointment
	InFlight   int
	Limit      int // of requests in flight; 0: none
	Queue      int // requests that wait in it
	Held       int // refusals that are held back
	KeptShare  float64
	Paused     bool // the backend has asked to be left alone
	Overloaded bool
	Herd       float64 // clients, or requests in a pulse; 0: there is no herd
	Replicas   int     // that share the backend; 0: it is not shared
}

// A ClassReading is what was decided on the requests of one class. Refused are also those
// that would have been.
type ClassReading struct {
	Name              string
	Admitted, Refused uint64
}

// The columns of a History: counts first, in the order of counts, then the present state, in
// that of state, then admitted and refused of each class.
const (
	refusedColumn  = 1
	observedColumn = refusedColumn + MaxReasons
	keptColumn     = observedColumn + MaxReasons
	backlogColumn  = keptColumn + 5
	classColumn    = backlogColumn + len(stateNames)
	columns        = classColumn + 2*MaxClasses
)

var (
	keptNames  = [...]string{"kept", "no_show", "late", "broken", "failed"}
	stateNames = [...]string{
		"backlog_ms", "deferred", "in_flight", "limit", "queue", "held", "kept_permille", "paused", "overloaded", "herd", "replicas",
	}
)

// counts returns what grows.
func (r *Reading) counts() (all [backlogColumn]uint64) {
	all[0] = r.Admitted
	copy(all[refusedColumn:], r.Refused[:])
	copy(all[observedColumn:], r.Observed[:])
	copy(all[keptColumn:], []uint64{r.Kept, r.NoShow, r.Late, r.Broken, r.Failed})
	return all
}

// state returns the rest, as whole numbers.
func (r *Reading) state() [len(stateNames)]uint32 {
	flag := func(is bool) uint32 {
		if is {
			return 1
		}
		return 0
	}
	return [...]uint32{
		whole(float64(r.Backlog.Milliseconds())), whole(float64(r.Deferred)), whole(float64(r.InFlight)), whole(float64(r.Limit)),
		whole(float64(r.Queue)), whole(float64(r.Held)), whole(1000 * r.KeptShare), flag(r.Paused), flag(r.Overloaded),
		whole(r.Herd), whole(float64(r.Replicas)),
	}
}

// whole rounds v to what a sample can hold.
func whole(v float64) uint32 { return uint32(max(0, min(math.MaxUint32, math.Round(v)))) }

// A History is the last ten minutes of one shield, a sample for each second, and what has
// happened in them. Counts are per second. The zero History is ready, and safe for
// concurrent use.
//
// It takes 3 KB for a shield that does nothing. A column whose samples are all alike is one
// number; another is 2.4 KB. So it takes some 30 KB under traffic, and at most MaxBytes, when
// all reasons, in both modes, and all of 16 classes have occurred in ten minutes.
type History struct {
	mu      sync.Mutex
	first   uint64 // the first second; 0: there is none
	last    uint64
	before  [backlogColumn]uint64 // the counts at last
	present [(Seconds + 63) / 64]uint64
	columns [columns]column
	classes []ClassReading // their counts at last
	events  journal
	limits  journal
}

// MaxBytes is how much memory a History takes at most: its columns, its notes and the names
// of its classes.
const MaxBytes = columns*(4*Seconds+40) + 2*journalLength*(maxNote+64) + 1024

// A column has a value for each second.
type column struct {
	rest   uint32   // all values, if values is nil
	same   int      // how many of the latest are alike
	values []uint32 // by second, modulo Seconds
}

func (c *column) at(seq uint64) uint32 {
	if c.values == nil {
		return c.rest
	}
	return c.values[seq%Seconds]
}

// put sets the value of a second that comes n after the one that was put before; n 0 is that
// one again.
func (c *column) put(seq, n uint64, v uint32) {
	switch {
	case c.values == nil && v == c.rest:
		return
	case c.values == nil:
		c.values = slices.Repeat([]uint32{c.rest}, Seconds)
	case v == c.at(seq-n):
		c.same += int(min(n, Seconds))
	default:
		c.same = 0
	}
	c.values[seq%Seconds] = v
	if c.same >= Seconds {
		*c = column{rest: v}
	}
}

// Observe takes the Reading of a second, as a Clock numbers them. If seconds were left out,
// there is no sample of them, and what was counted in them is spread over all that have
// passed. A second Reading of one second counts in addition.
func (h *History) Observe(seq uint64, r Reading) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.first == 0 {
		h.first, h.last = seq, seq-1
		for i, v := range r.state() {
			h.columns[backlogColumn+i].rest = v
		}
	}
	seq = max(seq, h.last)
	n := seq - h.last
	for missed := max(h.last+1, seq-min(seq, Seconds)); missed < seq; missed++ {
		h.mark(missed, false)
	}
	h.mark(seq, true)
	counts := r.counts()
	for i, count := range counts {
		h.count(i, seq, n, count, h.before[i])
	}
	for i, v := range r.state() {
		h.columns[backlogColumn+i].put(seq, n, v)
	}
	h.countClasses(seq, n, r.Classes[:min(len(r.Classes), MaxClasses)])
	h.last, h.before = seq, counts
}

// count puts the growth of a count into a column.
func (h *History) count(column int, seq, n, count, before uint64) {
	grown := count - before
	if count < before {
		grown = count
	}
	v := whole(float64(grown) / float64(max(1, n)))
	c := &h.columns[column]
	if n == 0 {
		v = whole(float64(v) + float64(c.at(seq)))
	}
	c.put(seq, n, v)
}

// countClasses does so for classes. Those of another config begin anew.
func (h *History) countClasses(seq, n uint64, classes []ClassReading) {
	same := func(a, b ClassReading) bool { return a.Name == b.Name }
	if !slices.EqualFunc(h.classes, classes, same) {
		clear(h.columns[classColumn:])
		h.classes = slices.Clone(classes)
	}
	for i, c := range classes {
		h.count(classColumn+2*i, seq, n, c.Admitted, h.classes[i].Admitted)
		h.count(classColumn+2*i+1, seq, n, c.Refused, h.classes[i].Refused)
		h.classes[i] = c
	}
}

func (h *History) mark(seq uint64, present bool) {
	word, bit := &h.present[seq%Seconds/64], uint64(1)<<(seq%Seconds%64)
	*word &^= bit
	if present {
		*word |= bit
	}
}

func (h *History) has(seq uint64) bool { return h.present[seq%Seconds/64]>>(seq%Seconds%64)&1 == 1 }

// start returns the first second from since on of which there may be a sample.
func (h *History) start(since uint64) uint64 {
	return max(since, h.first, h.last+1-min(h.last+1, Seconds))
}

// Samples are the seconds of a History from From on. Columns that are 0 throughout are left
// out.
type Samples struct {
	From    uint64            `json:"from"`
	Count   int               `json:"count"`
	Missing [][2]int          `json:"missing,omitempty"` // index, and how many: there are no samples of them
	Columns map[string]Column `json:"columns"`
	Events  []Note            `json:"events,omitempty"`
	Limits  []Note            `json:"limits,omitempty"` // changes of the limit in flight
}

// A Column has the values of one kind in Samples. In JSON it is one number if all are alike.
type Column []uint32

// MarshalJSON implements json.Marshaler.
func (c Column) MarshalJSON() ([]byte, error) {
	if len(c) > 0 && !slices.ContainsFunc(c, func(v uint32) bool { return v != c[0] }) {
		return strconv.AppendUint(nil, uint64(c[0]), 10), nil
	}
	b := append(make([]byte, 0, 4*len(c)+2), '[')
	for i, v := range c {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(v), 10)
	}
	return append(b, ']'), nil
}

// UnmarshalJSON implements json.Unmarshaler. The result has one value if all are alike.
func (c *Column) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		return json.Unmarshal(b, (*[]uint32)(c))
	}
	*c = Column{0}
	return json.Unmarshal(b, &(*c)[0])
}

// Since returns the Samples from the second since on, and what was noted from then on.
// Columns of refusals have the names of reasons in them.
func (h *History) Since(since uint64, reasons []string) Samples {
	h.mu.Lock()
	defer h.mu.Unlock()
	from := h.start(since)
	s := Samples{From: from, Columns: map[string]Column{}, Events: h.events.since(since), Limits: h.limits.since(since)}
	if h.first == 0 || from > h.last {
		return s
	}
	s.Count = int(h.last + 1 - from)
	for i := 0; i < s.Count; i++ {
		if begin := i; !h.has(from + uint64(i)) {
			for i < s.Count && !h.has(from+uint64(i)) {
				i++
			}
			s.Missing = append(s.Missing, [2]int{begin, i - begin})
		}
	}
	for i := range h.columns {
		name := h.name(i, reasons)
		if name == "" {
			continue
		}
		values, some := make(Column, s.Count), uint32(0)
		for j := range values {
			if h.has(from + uint64(j)) {
				values[j] = h.columns[i].at(from + uint64(j))
			}
			some |= values[j]
		}
		if some != 0 {
			s.Columns[name] = values
		}
	}
	return s
}

// name returns the name of a column; "" if it is not in use.
func (h *History) name(i int, reasons []string) string {
	of := func(prefix string, reason int) string {
		if reason < len(reasons) {
			return prefix + reasons[reason]
		}
		return ""
	}
	switch {
	case i < refusedColumn:
		return "admitted"
	case i < observedColumn:
		return of("refused.", i-refusedColumn)
	case i < keptColumn:
		return of("observed.", i-observedColumn)
	case i < backlogColumn:
		return keptNames[i-keptColumn]
	case i < classColumn:
		return stateNames[i-backlogColumn]
	}
	class := (i - classColumn) / 2
	if class >= len(h.classes) {
		return ""
	}
	return "class." + h.classes[class].Name + [...]string{".admitted", ".refused"}[(i-classColumn)%2]
}

// Means are the mean values per second of the last few samples.
type Means struct {
	Samples            int // that there were
	Admitted           float64
	Refused, Observed  [MaxReasons]float64
	Kept, NoShow, Late float64
	Broken             float64
}

// Lately returns the Means of the last n seconds.
func (h *History) Lately(n int) (m Means) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.first == 0 {
		return m
	}
	var sums [backlogColumn]float64
	for seq := h.start(h.last + 1 - min(h.last+1, uint64(n))); seq <= h.last; seq++ {
		if !h.has(seq) {
			continue
		}
		m.Samples++
		for i := range sums {
			sums[i] += float64(h.columns[i].at(seq))
		}
	}
	for i := range sums {
		sums[i] /= float64(max(1, m.Samples))
	}
	m.Admitted = sums[0]
	copy(m.Refused[:], sums[refusedColumn:])
	copy(m.Observed[:], sums[observedColumn:])
	m.Kept, m.NoShow, m.Late, m.Broken = sums[keptColumn], sums[keptColumn+1], sums[keptColumn+2], sums[keptColumn+3]
	return m
}
