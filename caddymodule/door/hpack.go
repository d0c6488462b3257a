package door

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"

	"github.com/herdshield/shield/pushback"
)

// lookAtBlock reports whether a header block is well-formed up to its last byte, so that a field may
// follow, and whether it changes the table of its decoder: RFC 7541, section 6. A nil block is malformed.
func lookAtBlock(b []byte) (whole, changes bool) {
	for whole = b != nil; whole && len(b) > 0; {
		bits, literal := uint(4), true // without indexing, or never indexed
		switch first := b[0]; {
		case first&0x80 != 0: // indexed field
			bits, literal = 7, false
		case first&0x40 != 0: // literal with incremental indexing
			bits, changes = 6, true
		case first&0x20 != 0: // size of the table
			bits, literal, changes = 5, false, true
		}
		var name uint64
		if name, b, whole = hpackInt(b, bits); whole && literal && name == 0 {
			b, whole = skipString(b)
		}
		if whole && literal {
			b, whole = skipString(b)
		}
	}
	return whole, changes
}

// hpackInt reads an integer with a prefix of so many bits: RFC 7541, section 5.1.
func hpackInt(b []byte, bits uint) (n uint64, rest []byte, ok bool) {
	if len(b) == 0 {
		return 0, nil, false
	}
	most := uint64(1)<<bits - 1
	n = uint64(b[0]) & most
	if n < most {
		return n, b[1:], true
	}
	more, size := binary.Uvarint(b[1:min(len(b), 5)]) // four bytes: longer ones are for none of our strings
	if size <= 0 {
		return 0, nil, false
	}
	return n + more, b[1+size:], true
}

func skipString(b []byte) (rest []byte, ok bool) {
	n, rest, ok := hpackInt(b, 7)
	if !ok || n > uint64(len(rest)) {
		return nil, false
	}
	return rest[n:], true
}

// appendHpackString appends a string after its length, an integer with a prefix of 7 bits.
func appendHpackString[T string | []byte](b []byte, s T) []byte {
	if len(s) < 127 {
		b = append(b, byte(len(s)))
	} else {
		b = binary.AppendUvarint(append(b, 127), uint64(len(s)-127))
	}
	return append(b, s...)
}

// numberName is the header by which a handler finds the note of a request. It is random, so that
// no client can send it, and is taken out before any handler sees it.
var (
	numberName = "x-" + strings.ToLower(rand.Text())
	numberKey  = http.CanonicalHeaderKey(numberName)
)

// appendNumbered appends a HEADERS frame without padding, with a number in its block. The field has no
// index, so that it changes nothing in the table.
func appendNumbered(b, frame []byte, number uint64) []byte {
	at := len(b)
	b = append(b, frame...)
	b = appendHpackString(append(b, 0), numberName)
	b = appendHpackString(b, strconv.FormatUint(number, 10))
	putLength(b[at:])
	return b
}

// putLength has a frame say how long it is.
func putLength(frame []byte) {
	n := len(frame) - frameHead
	frame[0], frame[1], frame[2] = byte(n>>16), byte(n>>8), byte(n)
}

// appendFrame appends the answer as a frame that ends the stream, with fields without indices: RFC 7541,
// section 6.2.2. The page has no body.
func (p *page) appendFrame(b []byte, stream uint32, h pushback.Hint) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, byte(http2.FrameHeaders), byte(http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream))
	b = binary.BigEndian.AppendUint32(b, stream)
	var buf [1024]byte // on the stack, for most answers
	status, lines, _ := bytes.Cut(p.append(buf[:0], h, time.Now()), []byte("\r\n"))
	b = appendHpackString(append(b, 0), ":status")
	b = appendHpackString(b, status[len("HTTP/1.1 "):][:3])
	for len(lines) > len("\r\n") {
		name, value, _ := bytes.Cut(lines, []byte(": "))
		value, lines, _ = bytes.Cut(value, []byte("\r\n"))
		for i, c := range name {
			if 'A' <= c && c <= 'Z' {
				name[i] = c + 'a' - 'A'
			}
		}
		b = appendHpackString(append(b, 0), name)
		b = appendHpackString(b, value)
	}
	putLength(b[at:])
	return b
}
