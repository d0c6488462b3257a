package share

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"strings"
	"time"

	"github.com/herdshield/shield/pushback"
)

// noteSize is how many bytes one note takes.
const noteSize = 8 + 8 + 4 + 4 + 1 + 1

// The bits of a note's flags; the two lowest are what it replaces, or what one of a crowd was
// told to come for.
const (
	noteDeferred = 4 << iota
	noteKept
	noteOnTime
	noteProven
	noteCrowd
)

// encode returns notes as text. zero is the store's time at 0.
func encode(notes []pushback.Note, zero time.Duration) string {
	if len(notes) == 0 {
		return ""
	}
	b := make([]byte, 0, len(notes)*noteSize)
	for i := range notes {
		n := &notes[i]
		flags := byte(n.Replace)
		if n.Crowd {
			flags = n.Promise & 3
		}
		for bit, is := range map[byte]bool{noteDeferred: n.Deferred, noteKept: n.Kept, noteOnTime: n.OnTime, noteProven: n.Trust == pushback.Proven, noteCrowd: n.Crowd} {
			if is {
				flags |= bit
			}
		}
		at := (n.At + zero).Milliseconds()
		b = binary.BigEndian.AppendUint64(b, n.Key)
		b = binary.BigEndian.AppendUint64(b, uint64(at))
		b = binary.BigEndian.AppendUint32(b, uint32(int32(at-(n.Told+zero).Milliseconds())))
		b = binary.BigEndian.AppendUint32(b, uint32(min(max(0, n.Number), math.MaxUint32)))
		b = append(b, byte(n.Fingerprint), flags)
	}
	return base64.StdEncoding.EncodeToString(b)
}

// decode appends to to the notes that a text has. A text that is none of this version is
// left out.
func decode(to []pushback.Note, text string, zero time.Duration) []pushback.Note {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b)%noteSize != 0 {
		return to
	}
	for ; len(b) > 0; b = b[noteSize:] {
		at := time.Duration(binary.BigEndian.Uint64(b[8:])) * time.Millisecond
		flags := b[25]
		n := pushback.Note{
			Key: binary.BigEndian.Uint64(b), Fingerprint: uint64(b[24]), Replace: pushback.Replace(flags & 3),
			Told: at - time.Duration(int32(binary.BigEndian.Uint32(b[16:])))*time.Millisecond - zero,
			Kept: flags&noteKept != 0, OnTime: flags&noteOnTime != 0,
		}
		n.At, n.Deferred, n.Number = at-zero, flags&noteDeferred != 0, float64(binary.BigEndian.Uint32(b[20:]))
		if n.Crowd = flags&noteCrowd != 0; n.Crowd {
			n.Promise, n.Replace = flags&3, 0
		}
		if flags&noteProven != 0 {
			n.Trust = pushback.Proven
		}
		to = append(to, n)
	}
	return to
}

// CountNews returns how many promises, made or kept, a text of news is about.
func CountNews(text string) int {
	return base64.RawStdEncoding.DecodedLen(len(strings.TrimRight(text, "="))) / noteSize
}
