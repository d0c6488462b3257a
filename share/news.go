package share

import (
	"encoding/base64"
	"encoding/binary"
	"time"

	"github.com/herdshield/shield/pushback"
)

// A note is how one is told, in bytes. Instants are milliseconds of the store's clock.
type note struct {
	Key                                uint64
	At                                 uint64
	Told                               int32 // before At
	Number                             uint32
	Slot, Kept, OnTime, Proven, Shared bool
}

var noteSize = binary.Size(note{})

// encode returns what a replica tells, as text: the hash of its name, and the notes. zero is the store's time at 0.
func encode(sender uint32, notes []pushback.Note, zero time.Duration) string {
	if len(notes) == 0 {
		return ""
	}
	all := make([]note, len(notes))
	for i, n := range notes {
		at := (n.At + zero).Milliseconds()
		all[i] = note{n.Key, uint64(at), int32(at - (n.Told + zero).Milliseconds()), uint32(int64(n.Number)),
			n.Slot, n.Kept, n.OnTime, n.Trust == pushback.Proven, n.Shared}
	}
	b, _ := binary.Append(binary.BigEndian.AppendUint32(nil, sender), binary.BigEndian, all) // it fails for no such type
	return base64.StdEncoding.EncodeToString(b)
}

// decode returns what a text says; no notes if it is none of this version.
func decode(text string, zero time.Duration) (sender uint32, notes []pushback.Note) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b) < 4 || (len(b)-4)%noteSize != 0 {
		return 0, nil
	}
	all := make([]note, (len(b)-4)/noteSize)
	_, _ = binary.Decode(b[4:], binary.BigEndian, all) // it has the length
	for _, n := range all {
		if n.At > mostTime {
			continue
		}
		at := time.Duration(n.At) * time.Millisecond
		of := pushback.Note{
			Key: n.Key, Turn: pushback.Turn{At: at - zero, Number: float64(n.Number), Slot: n.Slot},
			Told: at - time.Duration(n.Told)*time.Millisecond - zero, Kept: n.Kept, OnTime: n.OnTime, Shared: n.Shared,
		}
		if n.Proven {
			of.Trust = pushback.Proven
		}
		notes = append(notes, of)
	}
	return binary.BigEndian.Uint32(b), notes
}
