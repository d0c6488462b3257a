package share

import (
	"encoding/base64"
	"encoding/binary"
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

// encode returns what a replica tells, as text: the hash of its name, and the notes. zero is the store's time at 0.
func encode(sender uint32, notes []pushback.Note, zero time.Duration) string {
	if len(notes) == 0 {
		return ""
	}
	b := make([]byte, 0, 4+len(notes)*noteSize)
	b = binary.BigEndian.AppendUint32(b, sender)
	for i := range notes {
		n := &notes[i]
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

// decode returns what a text says; no notes if it is none of this version.
func decode(text string, zero time.Duration) (sender uint32, notes []pushback.Note) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b) < 4 || (len(b)-4)%noteSize != 0 {
		return 0, nil
	}
	sender = binary.BigEndian.Uint32(b)
	for b = b[4:]; len(b) > 0; b = b[noteSize:] {
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
		notes = append(notes, n)
	}
	return sender, notes
}
