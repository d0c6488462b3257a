package share

import (
	"encoding/base64"
	"encoding/binary"
	"time"

	"github.com/herdshield/shield/pushback"
)

// encode returns what a replica tells, as text: the hash of its name, and the notes as they are in memory, but for instants,
// which are of the store's clock. zero is its time at 0.
func encode(sender uint32, notes []pushback.Note, zero time.Duration) string {
	if len(notes) == 0 {
		return ""
	}
	b := binary.BigEndian.AppendUint32(nil, sender)
	for _, n := range notes {
		n.At, n.Told = n.At+zero, n.Told+zero
		b, _ = binary.Append(b, binary.BigEndian, n) // it fails for no such type
	}
	return base64.StdEncoding.EncodeToString(b)
}

// decode returns what a text says; no notes if it is none of this version.
func decode(text string, zero time.Duration) (sender uint32, notes []pushback.Note) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b) < 4 || (len(b)-4)%binary.Size(pushback.Note{}) != 0 {
		return 0, nil
	}
	notes = make([]pushback.Note, (len(b)-4)/binary.Size(pushback.Note{}))
	_, _ = binary.Decode(b[4:], binary.BigEndian, notes) // it has the length
	for i := range notes {
		n := &notes[i]
		if n.Trust > pushback.Proven || !between(0, n.Number, mostNumbers) {
			return 0, nil
		}
		n.At, n.Told = n.At-zero, n.Told-zero
	}
	return binary.BigEndian.Uint32(b), notes
}
