package oncall

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/herdshield/shield"
)

// Seconds is how many samples a History keeps: ten minutes, one a second.
const Seconds = 600

// Second returns the number of the second at now, the time since an epoch, from 1 on. Whoever counts them
// does best to look in their middle: then an early or late look leaves out none, and takes none twice.
func Second(now time.Duration) uint64 { return uint64(now/time.Second) + 1 }

// A History is the last ten minutes of one shield, a sample for each second, and what has
// happened in them. Counts are per second. The zero History is ready, and safe for
// concurrent use. With its first samples it takes up to 90 KB, and 5 KB for each class.
type History struct {
	mu      sync.Mutex
	last    uint64 // the last second; 0: there is none
	before  []float64
	ring    []sample // by second, modulo Seconds
	classes []string
	events  journal
	limits  journal
}

// A sample has the values of a second, in the order of columns and classes.
type sample struct {
	seq    uint64 // 0: there is none
	values []uint32
}

// A column of a sample is the state of that moment, or what is counted: that grows in Facts, and is per second in samples. Two counts of each
// class come after the columns.
type column struct {
	name  string
	grows bool
	of    func(*Facts) float64
}

var columns = func() []column {
	line := func(f *Facts) *Line { return cmp.Or(f.Line, new(Line)) }
	list := []column{
		{"backlog_ms", false, func(f *Facts) float64 { return 1000 * line(f).BacklogSeconds }},
		{"deferred", false, func(f *Facts) float64 { return float64(line(f).Deferred) }},
		{"in_flight", false, func(f *Facts) float64 { return float64(f.InFlight) }},
		{"limit", false, func(f *Facts) float64 { return float64(f.Concurrency) }},
		{"queue", false, func(f *Facts) float64 { return float64(cmp.Or(f.Queue, new(Queue)).Length) }},
		{"admitted", true, func(f *Facts) float64 { return float64(f.Admitted) }},
		{"kept", true, func(f *Facts) float64 { return float64(line(f).Kept) }},
		{"no_show", true, func(f *Facts) float64 { return float64(line(f).NoShow) }},
		{"broken", true, func(f *Facts) float64 { return float64(line(f).Broken) }},
		{"failed", true, func(f *Facts) float64 { return float64(f.Failures) }},
	}
	for _, reason := range shield.Reasons {
		list = append(list,
			column{"rejected." + reason.String(), true, func(f *Facts) float64 { return float64(f.Rejected[reason.String()]) }},
			column{"observed." + reason.String(), true, func(f *Facts) float64 { return float64(f.Observed[reason.String()]) }})
	}
	return list
}()

// whole rounds v to what a sample can hold.
func whole(v float64) uint32 { return uint32(max(0, min(math.MaxUint32, math.Round(v)))) }

// Observe takes the Facts of a second: see Second. If seconds were left out, there is no sample of them,
// and what was counted in them is spread over all that have passed. Facts that come again in one second
// are left to the next. A count that is below the one before began anew.
func (h *History) Observe(seq uint64, f *Facts) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if seq <= h.last {
		return
	}
	var classes []string
	for _, c := range f.Classes {
		classes = append(classes, c.Name)
	}
	var now []float64
	for _, c := range columns {
		now = append(now, c.of(f))
	}
	for _, c := range f.Classes {
		now = append(now, float64(c.Admitted), float64(c.Rejected+c.Observed))
	}
	if h.ring == nil {
		h.ring, h.before = make([]sample, Seconds), make([]float64, len(columns))
	}
	if !slices.Equal(classes, h.classes) { // those of another config begin anew
		for i := range h.ring {
			h.ring[i].values = h.ring[i].values[:min(len(h.ring[i].values), len(columns))]
		}
		h.classes, h.before = classes, append(h.before[:len(columns)], make([]float64, 2*len(classes))...)
	}
	passed := float64(seq - h.last)
	if h.last == 0 {
		passed = 1
	}
	values := make([]uint32, len(now))
	for i, v := range now {
		if i >= len(columns) || columns[i].grows {
			if v >= h.before[i] {
				v -= h.before[i]
			}
			v /= passed
		}
		values[i] = whole(v)
	}
	h.ring[seq%Seconds] = sample{seq, values}
	h.last, h.before = seq, now
}

// Samples are the seconds of a History from From on. Columns that are 0 throughout are left
// out.
type Samples struct {
	From    uint64              `json:"from"`
	Count   int                 `json:"count"`
	Missing [][2]int            `json:"missing,omitempty"` // index, and how many: there are no samples of them
	Columns map[string][]uint32 `json:"columns"`
	Events  []Note              `json:"events,omitempty"`
	Limits  []Note              `json:"limits,omitempty"` // changes of the limit in flight
}

// Since returns the Samples from the second since on, and what was noted from then on.
func (h *History) Since(since uint64) Samples {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := Samples{Columns: map[string][]uint32{}, Events: h.events.since(since), Limits: h.limits.since(since)}
	all := h.since(since)
	if len(all) == 0 {
		return s
	}
	s.From, s.Count = all[0].seq, int(h.last+1-all[0].seq)
	var names []string
	for _, c := range columns {
		names = append(names, c.name)
	}
	for _, c := range h.classes {
		names = append(names, "class."+c+".admitted", "class."+c+".rejected")
	}
	next := 0
	for _, one := range all {
		at := int(one.seq - s.From)
		if at > next {
			s.Missing = append(s.Missing, [2]int{next, at - next})
		}
		next = at + 1
		for i, v := range one.values {
			if v != 0 && s.Columns[names[i]] == nil {
				s.Columns[names[i]] = make([]uint32, s.Count)
			}
			if v != 0 {
				s.Columns[names[i]][at] = v
			}
		}
	}
	return s
}

// since returns the samples from a second on, the oldest first.
func (h *History) since(seq uint64) (list []sample) {
	for seq = max(seq, h.last+1-min(h.last+1, Seconds)); seq <= h.last && h.ring != nil; seq++ {
		if s := h.ring[seq%Seconds]; s.seq == seq && seq > 0 {
			list = append(list, s)
		}
	}
	return list
}

// Lately returns the mean of the last n seconds.
func (h *History) Lately(n int) *Lately {
	h.mu.Lock()
	defer h.mu.Unlock()
	mean, list := map[string]float64{}, h.since(h.last+1-min(h.last+1, uint64(n)))
	for _, s := range list {
		for i, c := range columns {
			mean[c.name] += float64(s.values[i])
		}
	}
	for name := range mean {
		mean[name] /= float64(len(list))
	}
	m := &Lately{
		Arrivals: mean["admitted"], Admitted: mean["admitted"], Rejected: map[string]float64{}, Observed: map[string]float64{},
		Kept: mean["kept"], NoShow: mean["no_show"], Broken: mean["broken"],
	}
	for _, reason := range shield.Reasons {
		for prefix, of := range map[string]map[string]float64{"rejected.": m.Rejected, "observed.": m.Observed} {
			if v := mean[prefix+reason.String()]; v > 0 {
				of[reason.String()] = v
				m.Arrivals += v
			}
		}
	}
	return m
}

const (
	journalLength = 64  // notes that are kept. Ours: more than a page shows
	maxNote       = 200 // bytes of a text
)

// A Level says how much a Note or a Sentence matters.
type Level string

// The levels, from the one that matters least.
const (
	Plain Level = ""
	Good  Level = "good"
	Warn  Level = "warn"
	Bad   Level = "bad"
)

// A Note is something that has happened.
type Note struct {
	ID    uint64 `json:"id"`  // 1, 2, ... in one History
	Seq   uint64 `json:"seq"` // the second
	Level Level  `json:"level,omitempty"`
	Text  string `json:"text"`
}

// A journal keeps the latest notes.
type journal []Note

func (j *journal) add(seq uint64, level Level, text string) {
	if len(text) > maxNote {
		text = strings.ToValidUTF8(text[:maxNote-3], "") + "…"
	}
	note := Note{1, seq, level, strings.Clone(text)}
	if n := len(*j); n > 0 {
		note.ID = (*j)[n-1].ID + 1
	}
	*j = append((*j)[max(0, len(*j)-journalLength+1):], note)
}

// since returns the notes from a second on, the oldest first.
func (j journal) since(seq uint64) (list []Note) {
	for _, n := range j {
		if n.Seq >= seq {
			list = append(list, n)
		}
	}
	return list
}

// Note notes what has happened in a second. Of a text, 200 bytes are kept, and of all
// notes the last 64.
func (h *History) Note(seq uint64, level Level, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events.add(seq, level, text)
}

// NoteLimit notes a change of the limit in flight, of which the last 64 are kept, too.
func (h *History) NoteLimit(seq uint64, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.limits.add(seq, Plain, text)
}
