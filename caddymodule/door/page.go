package door

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/pushback"
)

// A page is a rejection as net/http wrote it, with gaps for what differs from one to the next:
// the date, and how long the client is to wait.
//
// It is made of the bytes that were written, so it has the headers of all handlers. The gaps
// are where pushback.Responses puts its numbers: it is asked for the same rejection with two
// other numbers, and the places that differ are the gaps. With the first numbers in them they
// must give the written bytes, or there is no page. Other lines are taken as they are if they
// cannot have come from the rejection. And a memo counts only once two answers in a row have
// made the same page, so that it has nothing that differs for another reason.
type page struct {
	policy int // of the rejection
	status int
	text   []byte
	gaps   []gap
	body   int // its length without the number
	only   int // the page is for waits of so many seconds; 0: any
}

// A gap is where a value belongs.
type gap struct {
	at   int // in the text
	kind gapKind
}

type gapKind uint8

const (
	seconds gapKind = iota
	milliseconds
	length // of the body
	date
)

// fits reports whether the page can tell a rejection.
func (p *page) fits(d *shield.Decision) bool {
	f := d.Rejection()
	return f.Policy == p.policy && !f.Hint.Never && f.Ticket == "" && (p.only == 0 || p.only == f.Hint.Seconds)
}

// same reports whether two pages differ in nothing.
func (p *page) same(other *page) bool {
	return p.policy == other.policy && p.body == other.body && bytes.Equal(p.text, other.text) && slices.Equal(p.gaps, other.gaps)
}

// append appends the answer of now for a client that is to wait for so long.
func (p *page) append(b []byte, h pushback.Hint, now time.Time) []byte {
	from := 0
	for _, g := range p.gaps {
		b = append(b, p.text[from:g.at]...)
		from = g.at
		switch g.kind {
		case seconds:
			b = strconv.AppendInt(b, int64(h.Seconds), 10)
		case milliseconds:
			b = strconv.AppendInt(b, int64(h.Ms), 10)
		case length:
			b = strconv.AppendInt(b, int64(p.body+len(strconv.Itoa(h.Seconds))), 10)
		case date:
			b = now.UTC().AppendFormat(b, http.TimeFormat)
		}
	}
	return append(b, p.text[from:]...)
}

// samples are two rejections whose numbers are in no answer for another reason.
var samples = [2]pushback.Hint{{Seconds: 81307, Ms: 81306113}, {Seconds: 70259, Ms: 70258471}}

// newPage makes a page of the answer to r that was written, which told the client f.
func newPage(written []byte, r *http.Request, answers *pushback.Responses, f pushback.Rejection) (p page, ok bool) {
	head, body, whole := bytes.Cut(written, []byte("\r\n\r\n"))
	status, lines, some := strings.Cut(string(head), "\r\n")
	if _, err := fmt.Sscanf(status, "HTTP/1.1 %3d ", &p.status); !whole || !some || err != nil {
		return p, false
	}
	var made [2]sample
	for i, hint := range samples {
		made[i].header = http.Header{}
		answers.Write(&made[i], r, pushback.Rejection{Policy: f.Policy, Hint: hint}, time.Time{})
	}
	p.policy, p.text, p.body = f.Policy, append([]byte(status), "\r\n"...), len(made[0].body)-len(strconv.Itoa(samples[0].Seconds))
	var sent time.Time
	for line := range strings.SplitSeq(lines, "\r\n") {
		name, value, _ := strings.Cut(line, ": ")
		p.text = append(append(p.text, name...), ": "...)
		is, known := made[0].header[name]
		switch {
		case known && len(is) == 1 && (is[0] == value || is[0] != made[1].header.Get(name)): // else another handler says it
			ok = p.fill(value, is[0], made[1].header.Get(name), f.Hint)
		case name == "Date":
			var err error
			dated := !sent.IsZero()
			sent, err = http.ParseTime(value)
			ok = err == nil && !dated
			p.gap(date)
		case name == "Content-Length" && !bytes.Equal(made[0].body, made[1].body):
			ok = true
			p.gap(length)
		default:
			ok = p.take(name, value, r, f.Hint)
		}
		if !ok {
			return p, false
		}
		p.text = append(p.text, "\r\n"...)
	}
	p.text = append(p.text, "\r\n"...)
	ok = p.fill(string(body), string(made[0].body), string(made[1].body), f.Hint)
	return p, ok && bytes.Equal(written, p.append(nil, f.Hint, sent))
}

func (p *page) gap(kind gapKind) { p.gaps = append(p.gaps, gap{len(p.text), kind}) }

// fill adds a text with a gap, if it has one: a and b are the same text of the two samples.
// It reports whether the text is what was written.
func (p *page) fill(written, a, b string, h pushback.Hint) bool {
	if a == b {
		p.text = append(p.text, a...)
		return written == a
	}
	for kind, numbers := range [...][3]int{{samples[0].Seconds, samples[1].Seconds, h.Seconds}, {samples[0].Ms, samples[1].Ms, h.Ms}} {
		before, after, _ := strings.Cut(a, strconv.Itoa(numbers[0]))
		if b == before+strconv.Itoa(numbers[1])+after && written == before+strconv.Itoa(numbers[2])+after {
			p.text = append(p.text, before...)
			p.gap(gapKind(kind))
			p.text = append(p.text, after...)
			return true
		}
	}
	return false
}

// take adds a header that shield did not set. It must be the same in every answer. If a number
// in it may be that of the rejection, the page is for that number only.
func (p *page) take(name, value string, r *http.Request, h pushback.Hint) bool {
	switch name {
	case "Content-Length":
		p.text = append(p.text, value...)
		return r.Method != http.MethodHead
	case "Connection", "Set-Cookie", "Transfer-Encoding", "Content-Encoding", "Trailer", "Upgrade":
		return false
	}
	for number := range strings.FieldsFuncSeq(value, func(c rune) bool { return c < '0' || c > '9' }) {
		switch number {
		case strconv.Itoa(h.Ms):
			return false
		case strconv.Itoa(h.Seconds):
			p.only = h.Seconds
		}
	}
	p.text = append(p.text, value...)
	return true
}

// A sample is an http.ResponseWriter for one answer.
type sample struct {
	header http.Header
	body   []byte
}

func (s *sample) Header() http.Header { return s.header }
func (s *sample) WriteHeader(int)     {}
func (s *sample) Write(b []byte) (int, error) {
	s.body = append(s.body, b...)
	return len(b), nil
}
