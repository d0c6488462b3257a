package oncall

import (
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
	before  []uint64
	ring    []sample // by second, modulo Seconds
	classes []string
	events  journal
	limits  journal
}

// A sample has the values of a second, in the order of names.
type sample struct {
	seq    uint64 // 0: there is none
	values []uint32
}

// The columns of a sample are the state of that moment, then counts, which grow in Facts and are per
// second in samples, and then two of each class.
var (
	stateNames = [...]string{"backlog_ms", "deferred", "in_flight", "limit", "queue"}
	countNames = func() []string {
		names := []string{"admitted", "kept", "no_show", "broken", "failed"}
		for _, prefix := range []string{"rejected.", "observed."} {
			for _, reason := range shield.Reasons {
				names = append(names, prefix+reason.String())
			}
		}
		return names
	}()
)

// counts returns what grows, in the order of countNames and then of the classes.
func (f *Facts) counts() []uint64 {
	all := []uint64{f.Admitted, 0, 0, 0, f.Failures}
	if l := f.Line; l != nil {
		all[1], all[2], all[3] = l.Kept, l.NoShow, l.Broken
	}
	for _, of := range []map[string]uint64{f.Rejected, f.Observed} {
		for _, reason := range shield.Reasons {
			all = append(all, of[reason.String()])
		}
	}
	for _, c := range f.Classes {
		all = append(all, c.Admitted, c.Rejected+c.Observed)
	}
	return all
}

// state returns what is so now, as whole numbers.
func (f *Facts) state() []uint32 {
	all := make([]uint32, len(stateNames))
	if l := f.Line; l != nil {
		all[0], all[1] = whole(1000*l.BacklogSeconds), whole(float64(l.Deferred))
	}
	all[2], all[3] = whole(float64(f.InFlight)), whole(float64(f.Concurrency))
	if f.Queue != nil {
		all[4] = whole(float64(f.Queue.Length))
	}
	return all
}

// whole rounds v to what a sample can hold.
func whole(v float64) uint32 { return uint32(max(0, min(math.MaxUint32, math.Round(v)))) }

// Observe takes the Facts of a second: see Second. If seconds were left out, there is no sample of them,
// and what was counted in them is spread over all that have passed. Facts that come again in one second
// count in addition. A count that is below the one before began anew.
func (h *History) Observe(seq uint64, f *Facts) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var classes []string
	for _, c := range f.Classes {
		classes = append(classes, c.Name)
	}
	counts := f.counts()
	if h.ring == nil {
		h.ring, h.before = make([]sample, Seconds), make([]uint64, len(countNames))
	}
	if !slices.Equal(classes, h.classes) { // those of another config begin anew
		for i := range h.ring {
			h.ring[i].values = h.ring[i].values[:min(len(h.ring[i].values), len(stateNames)+len(countNames))]
		}
		h.classes, h.before = classes, append(h.before[:len(countNames)], make([]uint64, 2*len(classes))...)
	}
	seq = max(seq, h.last)
	passed := float64(max(1, seq-h.last))
	if h.last == 0 {
		passed = 1
	}
	s := &h.ring[seq%Seconds]
	again := s.seq == seq
	values := append(make([]uint32, 0, len(stateNames)+len(counts)), f.state()...)
	for i, n := range counts {
		grown := n - h.before[i]
		if n < h.before[i] {
			grown = n
		}
		v := float64(grown) / passed
		if again && len(values) < len(s.values) {
			v += float64(s.values[len(values)])
		}
		values = append(values, whole(v))
	}
	*s = sample{seq, values}
	h.last, h.before = seq, counts
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
	names := slices.Concat(stateNames[:], countNames)
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
	mean, list := make([]float64, len(stateNames)+len(countNames)), h.since(h.last+1-min(h.last+1, uint64(n)))
	for _, s := range list {
		for i := range mean {
			mean[i] += float64(s.values[i])
		}
	}
	for i := range mean {
		mean[i] /= float64(max(1, len(list)))
	}
	m := &Lately{Rejected: map[string]float64{}, Observed: map[string]float64{}}
	counts := mean[len(stateNames):]
	m.Admitted, m.Kept, m.NoShow, m.Broken = counts[0], counts[1], counts[2], counts[3]
	m.Arrivals = m.Admitted
	counts = counts[5:]
	for i, reason := range shield.Reasons {
		for j, of := range []map[string]float64{m.Rejected, m.Observed} {
			if v := counts[i+j*len(shield.Reasons)]; v > 0 {
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
func (h *History) NoteLimit(seq uint64, level Level, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.limits.add(seq, level, text)
}
