package accesslog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/herdshield/shield/loadtest/report"
)

// longestLine bounds a line. Caddy's are shorter than the largest header that it accepts, by
// default 1 MiB, plus a few hundred bytes.
const longestLine = 1 << 20

// Read reads a log, plain or gzipped, to its end. If r fails, it returns the Estimate up to
// that point along with the error. Without any line of the access log the Estimate is nil,
// and the error describes the lines.
func Read(r io.Reader) (*Estimate, error) {
	in := bufio.NewReaderSize(r, longestLine)
	if head, _ := in.Peek(2); bytes.Equal(head, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("access log: %w", err)
		}
		in = bufio.NewReaderSize(unzipped, longestLine)
	}
	t := newTally()
	err := eachLine(in, t.line)
	if t.e.Requests == 0 {
		if err != nil {
			return nil, fmt.Errorf("access log: %w", err)
		}
		return nil, fmt.Errorf("access log: no line is of Caddy's access log in JSON, with \"logger\": %q; %s read, %d of other loggers and %d broken; use the log of a site with the directive log",
			accessLogger, report.Plural(t.e.Lines.Read, "line was", "lines were"), t.e.Lines.Other, t.e.Lines.Broken)
	}
	if err != nil {
		err = fmt.Errorf("access log: after %s: %w", report.Plural(t.e.Lines.Read, "line", "lines"), err)
	}
	return t.estimate(), err
}

// eachLine calls f with each line of in that is not empty, without its end, and with nil for
// a line that is too long.
func eachLine(in *bufio.Reader, f func([]byte)) error {
	for {
		text, err := in.ReadSlice('\n')
		long := false
		for errors.Is(err, bufio.ErrBufferFull) {
			long = true
			_, err = in.ReadSlice('\n')
		}
		if text = bytes.TrimSpace(text); long {
			f(nil)
		} else if len(text) > 0 {
			f(text)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// A tally is the state of Read.
type tally struct {
	e        *Estimate
	arrivals *arrivals
	callers  callers
	clients  sample[struct{}] // all of them
	sum      time.Duration    // of the times of Timed requests
	work     time.Duration

	began time.Duration // when the first line was written, since 1970; 0: there is none
}

func newTally() *tally {
	e := new(Estimate)
	return &tally{e: e, arrivals: &arrivals{e: e}, callers: callers{newSample[*caller](maxCallers)}, clients: newSample[struct{}](maxCounted)}
}

func (t *tally) line(text []byte) {
	t.e.Lines.Read++
	switch r, err := parse(text); err {
	case nil:
		t.request(r)
	case errOther:
		t.e.Lines.Other++
	default:
		t.e.Lines.Broken++
	}
}

func (t *tally) request(r request) {
	t.count(r)
	a := t.arrivals
	switch {
	case t.began == 0:
		t.began = r.end
		a.begin(r.end)
	case r.end > a.now+silence:
		t.endPiece()
		a.begin(r.end)
	case r.end < a.now-open*time.Second:
		t.e.Lines.Unsorted++
		return
	}
	a.advance(r)
	t.began = min(t.began, a.from)
	a.add(r, t.callers.saw(r))
}

// count counts the properties of a request that do not depend on its time.
func (t *tally) count(r request) {
	e := t.e
	e.Requests++
	if r.untimed {
		e.Lines.Untimed++
	}
	switch {
	case r.status == http.StatusTooManyRequests:
		e.Quota++
	case r.overloaded():
		e.Overload++
	case r.status >= 500:
		e.Failed++
	}
	if !r.rejected() && !r.stream {
		t.work += r.took
	}
	if r.status >= 200 && r.status < 300 && !r.stream && !r.untimed {
		e.Timed++
		t.sum += r.took
	}
	if t.clients.in(r.client) {
		t.clients.put(r.client, struct{}{})
	}
}

func (t *tally) endPiece() {
	a := t.arrivals
	t.e.Pieces++
	t.e.Span += a.now - a.from
	a.end()
}

func (t *tally) estimate() *Estimate {
	t.endPiece()
	e, a := t.e, t.arrivals
	e.From = time.Unix(0, int64(t.began)).UTC()
	e.Span = max(e.Span, time.Second)
	over := e.Span.Seconds()

	retries, returns := t.callers.judge(a.now)
	e.Retries, e.Returns = int(min(retries, float64(e.Requests))), returns
	for _, b := range returns {
		e.Judged += b.Clients
	}
	sorted := e.Requests - e.Lines.Unsorted
	e.PerSec = float64(sorted) / over
	e.Rate = float64(max(0, sorted-e.Retries)) / over
	e.Calm = min(e.Rate, max(0, e.Rate-a.extra/over))
	e.Clients = int(float64(len(t.clients.of)) * t.clients.scale())
	e.Service = t.sum / time.Duration(max(1, e.Timed))
	e.Full = a.full()
	e.InWork = t.work.Seconds() / over
	e.PeakInWork = max(e.PeakInWork, e.InWork)
	return e
}
