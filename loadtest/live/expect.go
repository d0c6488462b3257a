package live

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An Expectation is a condition on a LoadResult, as "served >= 99%".
type Expectation struct {
	text   string
	figure figure
	op     string
	want   float64 // in the figure's unit; a share if percent
	share  bool
}

// A figure is a number of a LoadResult that an Expectation can name.
type figure struct {
	unit string // "" for a number, "s" for a time
	of   string // the whole of a share, by name; "" if there are no shares of it
	get  func(*Tally) float64
	all  func(*Tally) int // the whole of a share
}

var figures = func() map[string]figure {
	of := func(what string, all, n func(*Tally) int) figure {
		return figure{of: what, all: all, get: func(t *Tally) float64 { return float64(n(t)) }}
	}
	clients := func(t *Tally) int { return t.Clients + t.Skipped }
	requests := func(t *Tally) int { return t.Requests }
	// If no client was served, waits and requests for it are infinite.
	served := func(unit string, get func(*Tally) float64) figure {
		return figure{unit: unit, get: func(t *Tally) float64 {
			if t.Served == 0 {
				return math.Inf(1)
			}
			return get(t)
		}}
	}
	return map[string]figure{
		"served":               of("clients", clients, func(t *Tally) int { return t.Served }),
		"gave-up":              of("clients", clients, func(t *Tally) int { return t.GaveUp }),
		"refused":              of("requests", requests, func(t *Tally) int { return t.Refused }),
		"timed-out":            of("requests", requests, func(t *Tally) int { return t.TimedOut }),
		"unreachable":          of("requests", requests, func(t *Tally) int { return t.Unreachable }),
		"requests-per-success": served("", (*Tally).PerSuccess),
		"p50":                  served("s", func(t *Tally) float64 { return t.Wait.P50.Seconds() }),
		"p90":                  served("s", func(t *Tally) float64 { return t.Wait.P90.Seconds() }),
		"p99":                  served("s", func(t *Tally) float64 { return t.Wait.P99.Seconds() }),
		"p99.9":                served("s", func(t *Tally) float64 { return t.Wait.P999.Seconds() }),
		"max":                  served("s", func(t *Tally) float64 { return t.Wait.Max.Seconds() }),
	}
}()

// Figures returns the names of all figures, sorted.
func Figures() []string { return slices.Sorted(maps.Keys(figures)) }

var expectation = regexp.MustCompile(`(?s)^([^<>]*)([<>]=?)(.*)$`)

// ParseExpectation reads a figure, one of >=, <=, > and <, and a value: a number, a share
// of the clients or requests, as 99%, or for waits of served clients a time, as 2s. The
// figures are those of all clients together.
func ParseExpectation(s string) (Expectation, error) {
	parts := expectation.FindStringSubmatch(s)
	if parts == nil {
		return Expectation{}, fmt.Errorf("%q compares nothing; want <figure> >= <value>, or <=, > or <, as served>=99%%", s)
	}
	name, op, value := strings.TrimSpace(parts[1]), parts[2], strings.TrimSpace(parts[3])
	f, ok := figures[name]
	if !ok {
		return Expectation{}, fmt.Errorf("%q: figure %q is unknown; want one of %s", s, name, strings.Join(Figures(), ", "))
	}
	e := Expectation{text: name + " " + op + " " + value, figure: f, op: op}
	wanted, most := "a number", math.MaxFloat64
	var err error
	if f.unit == "s" {
		wanted = "a time, as 250ms or 2s"
		var d time.Duration
		d, err = time.ParseDuration(value)
		e.want = d.Seconds()
	} else {
		if f.of != "" {
			wanted += ", or a share of the " + f.of + ", as 99%"
		}
		var digits string
		if digits, e.share = strings.CutSuffix(value, "%"); e.share {
			most = 100
		}
		e.want, err = strconv.ParseFloat(strings.TrimSpace(digits), 64)
	}
	if err != nil || !(e.want >= 0 && e.want <= most) || e.share && f.of == "" {
		return Expectation{}, fmt.Errorf("%q: the value is %q; want %s", s, value, wanted)
	}
	if e.share {
		e.want /= 100
	}
	return e, nil
}

// Check returns nil if r is as expected, and otherwise an error with the actual figure.
func (e Expectation) Check(r LoadResult) error {
	if ok, shown := e.judge(r); !ok {
		return fmt.Errorf("%s is %s; want %s", strings.Fields(e.text)[0], shown, e.text)
	}
	return nil
}

// WriteExpectations writes a line for each: whether r is as expected, and the actual figure.
func WriteExpectations(w io.Writer, all []Expectation, r LoadResult) error {
	for _, e := range all {
		ok, shown := e.judge(r)
		if _, err := fmt.Fprintf(w, "%s %s: %s\n", map[bool]string{true: "✓", false: "✗"}[ok], e.text, shown); err != nil {
			return err
		}
	}
	return nil
}

// judge returns the actual figure, too, for people.
func (e Expectation) judge(r LoadResult) (ok bool, shown string) {
	is := e.figure.get(&r.All)
	shown = strconv.FormatFloat(is, 'g', 4, 64)
	switch {
	case math.IsInf(is, 1):
		shown = "without limit, as no client was served"
	case e.share:
		all := e.figure.all(&r.All)
		shown = fmt.Sprintf("%d of %d %s, %s", int(is), all, e.figure.of, percent(int(is), all))
		is /= float64(cmp.Or(all, 1))
	case e.figure.unit == "s":
		shown = people(time.Duration(is * float64(time.Second)))
	}
	return map[string]bool{">=": is >= e.want, "<=": is <= e.want, ">": is > e.want, "<": is < e.want}[e.op], shown
}
