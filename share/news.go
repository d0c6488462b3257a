package share

import (
	"encoding/base64"
	"encoding/binary"
	"strings"
	"time"

	"github.com/herdshield/shield/pushback"
)

// noteSize is how many bytes one note takes.
const noteSize = 8 + 8 + 4 + 4 + 1

// The bits of a note's flags.
const (
	noteSlot = 1 << iota
	noteKept
	noteOnTime
	noteProven
	noteShared
)

// A batch is what one exchange tells. It is told again, under its number, until it is known
// to have arrived.
type batch struct {
	sender uint32 // the hash of the replica's name
	number uint32
	notes  []pushback.Note
}

// batchSize is how many bytes the head of a batch takes.
const batchSize = 4 + 4

// encode returns a batch as text. zero is the store's time at 0.
func (t *batch) encode(zero time.Duration) string {
	if len(t.notes) == 0 {
		return ""
	}
	b := make([]byte, 0, batchSize+len(t.notes)*noteSize)
	b = binary.BigEndian.AppendUint32(b, t.sender)
	b = binary.BigEndian.AppendUint32(b, t.number)
	for i := range t.notes {
		n := &t.notes[i]
		flags := bitIf(n.Slot, noteSlot) | bitIf(n.Kept, noteKept) | bitIf(n.OnTime, noteOnTime) | bitIf(n.Trust == pushback.Proven, noteProven) | bitIf(n.Shared, noteShared)
		at := (n.At + zero).Milliseconds()
		b = binary.BigEndian.AppendUint64(b, n.Key)
		b = binary.BigEndian.AppendUint64(b, uint64(at))
		b = binary.BigEndian.AppendUint32(b, uint32(int32(at-(n.Told+zero).Milliseconds())))
		b = binary.BigEndian.AppendUint32(b, uint32(int64(n.Number)))
		b = append(b, flags)
	}
	return base64.StdEncoding.EncodeToString(b)
}

func bitIf(is bool, bit byte) byte {
	if is {
		return bit
	}
	return 0
}

// decode returns the batch that a text has; an empty one if it is none of this version.
func decode(text string, zero time.Duration) (t batch) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b) < batchSize || (len(b)-batchSize)%noteSize != 0 {
		return t
	}
	t.sender, t.number = binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
	for b = b[batchSize:]; len(b) > 0; b = b[noteSize:] {
		ms := binary.BigEndian.Uint64(b[8:])
		if ms > mostTime {
			continue
		}
		at, flags := time.Duration(ms)*time.Millisecond, b[24]
		n := pushback.Note{
			Key: binary.BigEndian.Uint64(b), Turn: pushback.Turn{At: at - zero, Number: float64(binary.BigEndian.Uint32(b[20:])), Slot: flags&noteSlot != 0},
			Told: at - time.Duration(int32(binary.BigEndian.Uint32(b[16:])))*time.Millisecond - zero,
			Kept: flags&noteKept != 0, OnTime: flags&noteOnTime != 0, Shared: flags&noteShared != 0,
		}
		if flags&noteProven != 0 {
			n.Trust = pushback.Proven
		}
		t.notes = append(t.notes, n)
	}
	return t
}

// CountNews returns how many promises, made or kept, a text of news is about.
func CountNews(text string) int {
	return max(0, base64.RawStdEncoding.DecodedLen(len(strings.TrimRight(text, "=")))-batchSize) / noteSize
}
