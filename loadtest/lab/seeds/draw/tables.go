package main

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/herdshield/shield/loadtest/lab/page"
	"github.com/herdshield/shield/loadtest/lab/seeds"
)

func (f *figures) tables() (all []page.Table) {
	for _, t := range []table{f.claims(), f.waves(), f.policies(), f.aws(), f.rungs(), f.beside()} {
		all = append(all, page.Table{Name: t.name, Text: page.Markdown(t.rows, len(t.rows[0]))})
	}
	return all
}

// plain is when those come who back off exponentially, without jitter.
func (f *figures) plain() string {
	var at []string
	for _, b := range f.outages["aws-exponential"].Bursts(seeds.Bin) {
		at = append(at, fmt.Sprintf("%.0f", b.From))
	}
	return strings.Join(at, ", ") + " s"
}

// rises lists the local maxima of a policy after what comes first, up to that time.
func (f *figures) rises(name string, until float64) (list []seeds.Peak) {
	for _, p := range f.outages[name].Waves() {
		if !math.IsInf(p.Rise(), 1) && p.Top.At < until {
			list = append(list, p)
		}
	}
	return list
}

// claims are what has been said, and what is so.
func (f *figures) claims() table {
	t := table{name: "claims", rows: [][]string{{"claim", "published", "simulated"}}}
	add := func(claim, said, here string, args ...any) {
		t.rows = append(t.rows, []string{claim, said, fmt.Sprintf(here, args...)})
	}
	o := f.outages["aws-exponential"]
	add("plain exponential: all retry together, after", "1, 3, 7, 15, 31 s", "%s", f.plain())
	add(fmt.Sprintf("plain exponential: bins of 10 ms with any retry, out of %s", thousands(float64(len(o.Counts)))), "5", "%d", len(o.Bursts(0)))

	o = f.outages["google-analytics"]
	bursts := o.Bursts(300 * time.Millisecond)
	var widths []string
	for _, b := range bursts {
		widths = append(widths, fmt.Sprintf("%.1f", b.To-b.From))
	}
	add("Google Analytics: width of its bursts", "1, 2, 3, 4, 5 s", "%s s", strings.Join(widths, ", "))
	add("Google Analytics: last retry, on average", "33.5 s", "%.2f s", mean(o, bursts[4]))
	add("Google Analytics: last retry of the first client, and of the last", "31 s, 36 s", "%.1f s, %.1f s", bursts[4].From, bursts[4].To)

	least, most := f.rest()
	add("Go array: retries per client and second, from the second minute to the tenth", "0.2", "%.3f to %.3f", least, most)

	rises := f.rises("google-http-java-client", math.Inf(1))
	lowest, highest := math.Inf(1), 0.0
	for _, p := range rises {
		lowest, highest = min(lowest, p.Rise()), max(highest, p.Rise())
	}
	add("google-http-java-client: rate rises again", "× 1.33 to × 4", "× %.2f to × %.2f, %d times in a minute", lowest, highest, len(rises))
	said := []string{"", "4.0 s × 1.25", "8.6 s × 1.13", "18 s × 1.10"}
	for i, p := range f.rises("binary-exponential", 30) {
		if i > 0 && i < len(said) {
			add(fmt.Sprintf("binary exponential: local maximum %d, and its rise", i+1), said[i], "%.1f s × %.2f", p.Top.At, p.Rise())
		}
	}
	add("modified binary exponential: local maxima", "none", "%s", number(len(f.outages["modified-binary-exponential"].Waves())))
	add("modified binary exponential: most that its rate differs from N/2^⌊log2(t+2)⌋", "0", "%.1f%%, noise", 100*f.off())
	for _, b := range []struct{ name, said string }{{"none", "2412"}, {"exponential", "1829"}, {"equal", "812"}, {"full", "796"}, {"decorrelated", "1000"}} {
		add("AWS's simulation, 100 clients, calls: "+jitter[b.name], b.said, "%.0f", f.contends[b.name][claimed].Calls)
	}
	return t
}

// jitter is what AWS calls its back-offs.
var jitter = map[string]string{
	"none": "no back-off", "exponential": "no jitter", "equal": "equal jitter", "full": "full jitter", "decorrelated": "decorrelated jitter",
}

func number(n int) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprint(n)
}

// mean is when the retries of a burst come, on average.
func mean(o *seeds.Outage, b seeds.Burst) float64 {
	sum, n := 0.0, 0
	for i, c := range o.Counts {
		if at := (float64(i) + 0.5) * o.Bin.Seconds(); at > b.From && at < b.To {
			sum, n = sum+at*float64(c), n+c
		}
	}
	return sum / float64(n)
}

// rest is how often each of the Go array's clients retries per second once all has
// settled, at least and at most in ten seconds.
func (f *figures) rest() (least, most float64) {
	const ten = 10 * time.Second
	least = math.Inf(1)
	for at := settled; at < forEver; at += ten {
		rate := (f.settles.By(at+ten) - f.settles.By(at)) / ten.Seconds()
		least, most = min(least, rate), max(most, rate)
	}
	return least, most
}

// off is by how much the modified policy's rate is off its law at most, in a second.
func (f *figures) off() (most float64) {
	o := f.outages["modified-binary-exponential"]
	for s := range int(seeds.Shown / time.Second) {
		rate := o.By(time.Duration(s+1)*time.Second) - o.By(time.Duration(s)*time.Second)
		most = max(most, math.Abs(rate*math.Exp2(math.Floor(math.Log2(float64(s)+2)))-1))
	}
	return most
}

// waves are the local maxima of the three policies of the picture.
func (f *figures) waves() table {
	t := table{name: "waves", rows: [][]string{{"policy", "local maxima: at second: retries per client and second × rise since the low before"}}}
	for _, name := range waving {
		var list []string
		for _, p := range f.rises(name, math.Inf(1)) {
			list = append(list, fmt.Sprintf("%.1f: %.3g × %.2f", p.Top.At, p.Top.Rate, p.Rise()))
		}
		t.rows = append(t.rows, []string{"`" + name + "`", cmp.Or(strings.Join(list, "; "), "none")})
	}
	return t
}

func (f *figures) policies() table {
	t := table{name: "policies", rows: [][]string{{"policy", "retries in a minute", "most in 100 ms", "at", "share of 100 ms intervals without any", "gave up after"}}}
	for _, r := range ridges {
		o := f.outages[r]
		most, at, silent := o.Most(100 * time.Millisecond)
		ends := "no"
		if o.GaveUp > 0 {
			ends = fmt.Sprintf("%.1f s", o.Last.Seconds())
		}
		t.rows = append(t.rows, []string{
			"`" + r + "`", fmt.Sprintf("%.2f", o.By(seeds.Shown)), fmt.Sprintf("%.1f%%", 100*most), fmt.Sprintf("%.1f s", at),
			fmt.Sprintf("%.0f%%", 100*silent), ends,
		})
	}
	return t
}

func (f *figures) aws() table {
	t := table{name: "aws", rows: [][]string{{"", "calls", "seconds until all have written", "calls, 200 clients", "seconds"}}}
	for _, b := range seeds.Backoffs {
		c, twice := f.contends[b.Name][claimed], f.contends[b.Name][2*claimed]
		t.rows = append(t.rows, []string{
			jitter[b.Name], thousands(c.Calls), fmt.Sprintf("%.1f", c.Time.Seconds()), thousands(twice.Calls), fmt.Sprintf("%.1f", twice.Time.Seconds()),
		})
	}
	return t
}

func (f *figures) rungs() table {
	t := table{name: "ladder", rows: [][]string{{
		"clients, n", "windows of 2^k: slots", "/ n", "/ n lg n", "windows of n: slots", "/ n", "/ n lg lg n", "shield: slots", "/ n",
	}}}
	for _, n := range herds {
		size, lg := float64(n), math.Log2(float64(n))
		two, fit, shield := f.ladder[doubling][n].Slots, f.ladder[fitting][n].Slots, f.ladder[told][n].Slots
		t.rows = append(t.rows, []string{
			thousands(size), thousands(two), ratio(two / size), ratio(two / size / lg),
			thousands(fit), ratio(fit / size), ratio(fit / size / math.Log2(lg)), thousands(shield), ratio(shield / size),
		})
	}
	return t
}

// beside is what else there is to know of the ladder.
func (f *figures) beside() table {
	t := table{name: "beside", rows: [][]string{{
		"clients, n", "requests each: 2^k", "n", "shield", "on a wire, slots / n: 2^k", "n", "shield, whole seconds: slots", "/ n", "requests each",
	}}}
	for _, n := range herds {
		size := float64(n)
		row := []string{thousands(size)}
		for _, ladder := range []string{doubling, fitting, told} {
			row = append(row, fmt.Sprintf("%.1f", f.ladder[ladder][n].Requests))
		}
		seconds := f.ladder[toldSeconds][n]
		t.rows = append(t.rows, append(row,
			ratio(f.ladder[doublingAlone][n].Slots/size), ratio(f.ladder[fittingAlone][n].Slots/size),
			thousands(seconds.Slots), ratio(seconds.Slots/size), fmt.Sprintf("%.1f", seconds.Requests),
		))
	}
	return t
}

func ratio(r float64) string { return fmt.Sprintf("%.2f", r) }

func thousands(v float64) string { return page.Thousands(int(math.Round(v))) }
