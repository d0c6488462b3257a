package oncall

import "strings"

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
type journal struct {
	notes []Note // by ID, modulo journalLength
	next  uint64 // ID - 1
}

func (j *journal) add(seq uint64, level Level, text string) {
	if len(text) > maxNote {
		text = strings.ToValidUTF8(text[:maxNote-3], "") + "…"
	}
	note := Note{j.next + 1, seq, level, strings.Clone(text)}
	if len(j.notes) < journalLength {
		j.notes = append(j.notes, note)
	} else {
		j.notes[j.next%journalLength] = note
	}
	j.next++
}

// since returns the notes from a second on, the oldest first.
func (j *journal) since(seq uint64) (list []Note) {
	for id := j.next - min(j.next, uint64(len(j.notes))); id < j.next; id++ {
		if n := j.notes[id%journalLength]; n.Seq >= seq {
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
