package accesslog

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

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
	head, _ := in.Peek(4)
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		unzipped, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("access log: %w", err)
		}
		in = bufio.NewReaderSize(unzipped, longestLine)
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return nil, errors.New("access log is compressed with zstd; want gzip or plain text, as from zstd -dc FILE")
	}
	t := newTally()
	err := eachLine(in, t.line)
	if t.e.Requests == 0 {
		if err != nil {
			return nil, fmt.Errorf("access log: %w", err)
		}
		return nil, fmt.Errorf("access log: no line is of Caddy's access log in JSON, with \"logger\": %q; %s read, %d of other loggers and %d broken; want the log of a site with the directive log",
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
	counts   sample[uint32]
	times    *hdrhistogram.Histogram // in microseconds
	sum      time.Duration           // of times
	work     time.Duration

	pieces []stretch // that have ended, at most maxPieces

	last  time.Duration // when the last line was written that is not stray; 0: there is none
	apart []request     // more than ten minutes from last: perhaps stray
	jumps int           // times that the log went on there
}

// minRun is how many lines in a row are not stray.
const minRun = 10

// A stretch is a time from begin to end, since 1970.
type stretch struct{ begin, end time.Duration }

// maxPieces bounds tally.pieces: 1.6 MB.
const maxPieces = 100_000

func newTally() *tally {
	return &tally{
		e:        &Estimate{},
		arrivals: newArrivals(),
		callers:  callers{sample: newSample[*caller](maxCallers)},
		counts:   newSample[uint32](maxCounted),
		times:    hdrhistogram.New(1, maxWait.Microseconds(), 3),
	}
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

// request counts a request. One that is far from the last in time waits until it is known
// whether the log goes on from there.
func (t *tally) request(r request) {
	t.count(r)
	if t.last == 0 || (r.end-t.last).Abs() <= open*time.Second {
		t.e.Lines.Stray += len(t.apart)
		t.apart = t.apart[:0]
		t.place(r)
		return
	}
	if t.apart = append(t.apart, r); len(t.apart) == minRun {
		t.goOn()
	}
}

func (t *tally) goOn() {
	if len(t.apart) > 0 {
		t.jumps++
	}
	for _, r := range t.apart {
		t.place(r)
	}
	t.apart = t.apart[:0]
}

func (t *tally) place(r request) {
	a := t.arrivals
	back := r.end < a.now-open*time.Second
	if back {
		t.e.Lines.Backward++
	}
	if back || r.end > a.now+silence {
		t.endPiece()
		a.begin(r.end)
	}
	if r.end < a.now-time.Second {
		t.e.Lines.Unsorted++
	}
	t.last = r.end
	a.advance(r)
	a.add(r, t.callers.saw(r))
}

// count counts the properties of a request that do not depend on its time.
func (t *tally) count(r request) {
	e := t.e
	e.Requests++
	if r.untimed {
		e.Lines.Untimed++
	}
	if r.coarse {
		e.Lines.Coarse++
	}

	switch {
	case r.status == 429:
		e.Answers.Quota++
	case r.overloaded():
		e.Answers.Overload++
	case r.status >= 500:
		e.Answers.Failed++
	case !r.served():
		e.Answers.Gone++
	default:
		e.Answers.Served++
		if r.stream {
			e.Answers.Streams++
		}
	}
	if !r.refused() && !r.stream {
		t.work += r.took
	}
	if r.status >= 200 && r.status < 300 && !r.stream && !r.untimed {
		_ = t.times.RecordValue(r.took.Microseconds()) // at most maxWait
		t.sum += r.took
	}

	if t.counts.in(r.client) {
		t.counts.put(r.client, t.counts.of[r.client]+1)
	}
}

// endPiece ends the piece of log so far, if there is one.
func (t *tally) endPiece() {
	a := t.arrivals
	if t.last == 0 {
		return
	}
	t.e.Pieces++
	t.e.Span += a.now - a.from
	if len(t.pieces) < maxPieces {
		t.pieces = append(t.pieces, stretch{a.from, a.now})
	}
	a.end()
	t.callers.end(a.now)
}

// overlap sorts the pieces, and returns how long more than one was at once.
func overlap(pieces []stretch) (sum time.Duration) {
	slices.SortFunc(pieces, func(a, b stretch) int { return cmp.Compare(a.begin, b.begin) })
	end := time.Duration(0)
	for _, p := range pieces {
		sum += max(0, min(end, p.end)-p.begin)
		end = max(end, p.end)
	}
	return sum
}

func (t *tally) estimate() *Estimate {
	// A last line far from all others is stray, except in a log with few lines.
	if t.jumps == 0 && t.e.Requests > 100*len(t.apart) {
		t.e.Lines.Stray += len(t.apart)
	} else {
		t.goOn()
	}
	t.endPiece()
	e := t.e
	e.Overlap = overlap(t.pieces)
	e.From = time.Unix(0, int64(t.pieces[0].begin)).UTC()
	e.Span = max(e.Span, time.Second)
	over := e.Span.Seconds()

	retries := 0.0
	for _, c := range t.callers.of {
		retries += float64(c.returned())
	}
	e.Retries = int(min(retries*t.callers.scale(), float64(e.Requests)))
	e.Rate = float64(e.Requests-e.Retries) / over

	t.estimateArrivals(over)
	t.estimateClients()
	if n := t.times.TotalCount(); n > 0 {
		e.Service = t.sum / time.Duration(n)
		p := func(q float64) time.Duration { return time.Duration(t.times.ValueAtPercentile(q)) * time.Microsecond }
		e.Times = Times{P50: p(50), P95: p(95), P99: p(99), Max: p(100), Of: int(n)}
	}

	e.Returns, e.Judged = judge(t.callers.of)
	e.Sampled = int(min(t.callers.scale(), 1<<30))
	e.Undecided, e.Lost = t.callers.undecided, t.callers.lost
	return e
}

func (t *tally) estimateArrivals(over float64) {
	e := t.e
	a := t.arrivals
	e.Arrivals, e.Bursts = a.Arrivals, a.Bursts
	e.Arrivals.Mean = float64(e.Requests) / over
	at := func(percent float64) float64 { return float64(a.counts.ValueAtPercentile(percent)) }
	e.Arrivals.P50, e.Arrivals.P95, e.Arrivals.P99 = at(50), at(95), at(99)
	e.Calm = min(e.Rate, max(0, e.Rate-a.extra/over))
	e.Answers.Peak, e.Answers.Full = a.peakServed, a.full()
	e.Concurrency = Concurrency{Mean: t.work.Seconds() / over, Peak: max(a.peakWork, t.work.Seconds()/over)}
}

func (t *tally) estimateClients() {
	e := t.e
	e.Clients = int(float64(len(t.counts.of)) * t.counts.scale())
	perClient := slices.Sorted(maps.Values(t.counts.of))
	at := func(q float64) int { return int(perClient[int(q*float64(len(perClient)-1))]) }
	if len(perClient) > 0 { // a sample of very few may be empty
		e.PerClient = PerClient{P50: at(0.5), P99: at(0.99), Max: at(1), Of: len(perClient)}
	}
	e.PerClient.Mean = float64(e.Requests) / float64(max(1, e.Clients))
}
