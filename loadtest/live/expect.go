package live

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/herdshield/shield/loadtest/report"
)

// An Expectation is a condition on a LoadResult, as "served >= 99%".
type Expectation struct {
	text, name, op string
	want           float64 // in seconds for a time; a share if share
	share          bool
}

// A figure is a number of a LoadResult that an Expectation can name. of says what there are shares of:
// clients or requests; aTime, or "" for other figures. These two are infinite if no client was served.
type figure struct {
	of  string
	get func(*Tally) float64
}

const aTime = "time"

var figures = map[string]figure{
	"served":               {"clients", func(t *Tally) float64 { return float64(t.Served) }},
	"gave-up":              {"clients", func(t *Tally) float64 { return float64(t.GaveUp) }},
	"rejected":             {"requests", func(t *Tally) float64 { return float64(t.Rejected) }},
	"timed-out":            {"requests", func(t *Tally) float64 { return float64(t.TimedOut) }},
	"unreachable":          {"requests", func(t *Tally) float64 { return float64(t.Unreachable) }},
	"requests-per-success": {"", (*Tally).PerSuccess},
	"p50":                  {aTime, func(t *Tally) float64 { return t.Wait.P50.Seconds() }},
	"p90":                  {aTime, func(t *Tally) float64 { return t.Wait.P90.Seconds() }},
	"p99":                  {aTime, func(t *Tally) float64 { return t.Wait.P99.Seconds() }},
	"p99.9":                {aTime, func(t *Tally) float64 { return t.Wait.P999.Seconds() }},
	"max":                  {aTime, func(t *Tally) float64 { return t.Wait.Max.Seconds() }},
}

// Figures returns the names of all figures, sorted.
func Figures() []string { return slices.Sorted(maps.Keys(figures)) }

var expectation = regexp.MustCompile(`(?s)^([^<>]*)([<>]=?)(.*)$`)

// ParseExpectation reads a figure, one of >=, <=, > and <, and a value: a number, a share
// of the clients or requests, like 99%, or for waits of served clients a time, as 2s. The
// figures are those of all clients together.
func ParseExpectation(s string) (Expectation, error) {
	parts := expectation.FindStringSubmatch(s)
	if parts == nil {
		return Expectation{}, fmt.Errorf("%q compares nothing; use <figure> >= <value>, or <=, > or <, like served>=99%%", s)
	}
	name, op, value := strings.TrimSpace(parts[1]), parts[2], strings.TrimSpace(parts[3])
	f, ok := figures[name]
	if !ok {
		return Expectation{}, fmt.Errorf("%q: figure %q is unknown; use one of %s", s, name, strings.Join(Figures(), ", "))
	}
	e := Expectation{text: name + " " + op + " " + value, name: name, op: op}
	wanted, most := "a number", math.MaxFloat64
	var err error
	if f.of == aTime {
		wanted = "a time, like 250ms or 2s"
		var d time.Duration
		d, err = time.ParseDuration(value)
		e.want = d.Seconds()
	} else {
		if f.of != "" {
			wanted += ", or a share of the " + f.of + ", like 99%"
		}
		var digits string
		if digits, e.share = strings.CutSuffix(value, "%"); e.share {
			most = 100
		}
		e.want, err = strconv.ParseFloat(strings.TrimSpace(digits), 64)
	}
	if err != nil || !(e.want >= 0 && e.want <= most) || e.share && f.of == "" {
		return Expectation{}, fmt.Errorf("%q: the value is %q; use %s", s, value, wanted)
	}
	if e.share {
		e.want /= 100
	}
	return e, nil
}

// Check returns nil if r is as expected, and otherwise an error with the actual figure.
func (e Expectation) Check(r LoadResult) error {
	f, t := figures[e.name], &r.All
	is := f.get(t)
	shown := strconv.FormatFloat(is, 'g', 4, 64)
	switch {
	case t.Served == 0 && (f.of == aTime || f.of == ""):
		is, shown = math.Inf(1), "without limit, as no client was served"
	case e.share:
		all := map[string]int{"clients": t.Clients + t.Skipped, "requests": t.Requests}[f.of]
		shown = fmt.Sprintf("%d of %d %s, %s", int(is), all, f.of, report.Percent(int(is), all))
		is /= float64(cmp.Or(all, 1))
	case f.of == aTime:
		shown = report.Time(time.Duration(is * float64(time.Second)))
	}
	if map[string]bool{">=": is >= e.want, "<=": is <= e.want, ">": is > e.want, "<": is < e.want}[e.op] {
		return nil
	}
	return fmt.Errorf("%s is %s; expected %s", e.name, shown, e.text)
}
