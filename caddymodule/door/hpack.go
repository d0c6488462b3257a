package door

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"net/http"
	"strconv"
	"strings"

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

// appendHpackInt appends an integer with a prefix of 7 bits.
func appendHpackInt(b []byte, n int) []byte {
	if n < 127 {
		return append(b, byte(n))
	}
	return binary.AppendUvarint(append(b, 127), uint64(n-127))
}

func appendHpackString(b []byte, s string) []byte {
	return append(appendHpackInt(b, len(s)), s...)
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

// A field is one of a header block without indices: RFC 7541, section 6.2.2.
type field struct {
	name  []byte // as it is sent
	value page   // only its text and gaps
}

// fieldsOf returns the header block of a page that has no body.
func fieldsOf(p *page) (fields []field) {
	from := bytes.Index(p.text, []byte("\r\n")) + len("\r\n")
	status := field{value: page{text: p.text[len("HTTP/1.1 "):][:3]}}
	status.name = appendHpackString([]byte{0}, ":status")
	fields = append(fields, status)
	gaps := p.gaps
	for line := range bytes.SplitSeq(p.text[from:], []byte("\r\n")) {
		name, value, is := bytes.Cut(line, []byte(": "))
		if !is {
			break
		}
		f := field{name: appendHpackString([]byte{0}, strings.ToLower(string(name))), value: page{text: value, body: p.body}}
		begins := from + len(line) - len(value)
		from += len(line) + len("\r\n")
		for ; len(gaps) > 0 && gaps[0].at < from; gaps = gaps[1:] {
			f.value.gaps = append(f.value.gaps, gap{gaps[0].at - begins, gaps[0].kind})
		}
		fields = append(fields, f)
	}
	return fields
}

// appendFrame appends the answer as a frame that ends the stream.
func (p *page) appendFrame(b []byte, stream uint32, h pushback.Hint) []byte {
	at := len(b)
	var date [len(http.TimeFormat)]byte
	now := dateNow(&date)
	b = append(b, 0, 0, 0, byte(http2.FrameHeaders), byte(http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream))
	b = binary.BigEndian.AppendUint32(b, stream)
	var value [128]byte
	for i := range p.fields {
		f := &p.fields[i]
		v := f.value.text
		if len(f.value.gaps) > 0 {
			v = f.value.append(value[:0], h, now)
		}
		b = append(b, f.name...)
		b = append(appendHpackInt(b, len(v)), v...)
	}
	putLength(b[at:])
	return b
}
