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
