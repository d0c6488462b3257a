package live

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// lateness is how late the 99th percentile of requests may leave this machine before the
// report warns. Ours: a tenth of the delay that people notice.
const lateness = 10 * time.Millisecond

// WriteLoad writes a load and its result as tables for people.
func WriteLoad(w io.Writer, c LoadConfig, r LoadResult) error {
	c = c.withDefaults()
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintf(tw, "target\t%s %s by %s, %s\n", c.Method, c.Target.URL, c.Proto, c.connects())
	fmt.Fprintf(tw, "load\t%s\n", c.comes())
	fmt.Fprintf(tw, "clients\t%s; each waits %s for an answer, and %s\n",
		c.policies(), brief(c.Timeout), c.tries())
	fmt.Fprintf(tw, "took\t%s; seed %d\n", people(r.Took), c.Seed)
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if err := writeCounts(w, c, r); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if err := writeTimes(w, c, r); err != nil {
		return err
	}
	if len(r.Policies) > 1 {
		fmt.Fprintln(w)
		if err := writePolicies(w, r); err != nil {
			return err
		}
	}
	for _, note := range c.notes(r) {
		fmt.Fprintf(w, "\nNote: %s\n", note)
	}
	return nil
}

// comes describes the arrivals.
func (c LoadConfig) comes() string {
	pace := "at random"
	if c.Even {
		pace = "evenly spaced"
	}
	var parts []string
	if c.Herd > 0 {
		s := fmt.Sprintf("a herd of %d within %s", c.Herd, brief(c.Within))
		if c.HerdAfter > 0 {
			s += " after " + brief(c.HerdAfter)
		}
		parts = append(parts, s)
	}
	if c.Rate > 0 {
		parts = append(parts, fmt.Sprintf("%s clients per second for %s", decimal(c.Rate), brief(c.Duration)))
	}
	return strings.Join(parts, ", and ") + ", " + pace
}

func (c LoadConfig) policies() string {
	total := 0.0
	for _, s := range c.Mix {
		total += s.Weight
	}
	var names []string
	for _, s := range c.Mix {
		name := fmt.Sprint(s.Policy)
		if len(c.Mix) > 1 {
			name = fmt.Sprintf("%.0f %% %s", 100*s.Weight/total, name)
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// tries describes how long clients retry.
func (c LoadConfig) tries() string {
	switch s := fmt.Sprintf("tries again for %s at most", brief(c.Patience)); {
	case c.Attempts == 1 || c.Patience == 0:
		return "tries once"
	case c.Attempts > 1:
		return fmt.Sprintf("%s, %d times in all", s, c.Attempts)
	default:
		return s
	}
}

// A group is a column of the table.
type group struct {
	name string
	*Tally
}

// groups returns the columns: one, or with a herd and others both and their sum.
func (c LoadConfig) groups(r *LoadResult) []group {
	switch {
	case c.Rate == 0:
		return []group{{"herd", &r.All}}
	case c.Herd == 0:
		return []group{{"all", &r.All}}
	}
	return []group{{"herd", &r.Herd}, {"others", &r.Others}, {"all", &r.All}}
}

func writeCounts(w io.Writer, c LoadConfig, r LoadResult) error {
	groups := c.groups(&r)
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	row := func(label string, cell func(*Tally) string) {
		fmt.Fprint(tw, label)
		for _, g := range groups {
			fmt.Fprintf(tw, "\t%s", cell(g.Tally))
		}
		fmt.Fprintln(tw)
	}
	some := func(n func(*Tally) int) bool { return n(&r.All) > 0 }
	number := func(n func(*Tally) int) func(*Tally) string {
		return func(t *Tally) string { return fmt.Sprint(n(t)) }
	}
	fmt.Fprint(tw, "")
	for _, g := range groups {
		fmt.Fprintf(tw, "\t%s", g.name)
	}
	fmt.Fprintln(tw)
	row("clients", number(func(t *Tally) int { return t.Clients }))
	row("  served", func(t *Tally) string { return fmt.Sprintf("%d (%s)", t.Served, percent(t.Served, t.Clients)) })
	row("  gave up", number(func(t *Tally) int { return t.GaveUp }))
	if trying := func(t *Tally) int { return t.Trying }; some(trying) {
		row("  still trying when stopped", number(trying))
	}
	if crowded := func(t *Tally) int { return t.Skipped - t.Overdue }; some(crowded) {
		row("never came: too many at once", number(crowded))
	}
	if overdue := func(t *Tally) int { return t.Overdue }; some(overdue) {
		row("never came: no time for them here", number(overdue))
	}
	row("last served after", func(t *Tally) string {
		if t.Served == 0 {
			return "-"
		}
		return people(t.LastServed)
	})
	row("requests", number(func(t *Tally) int { return t.Requests }))
	row("requests per success", func(t *Tally) string {
		if t.Served == 0 {
			return "none served"
		}
		return fmt.Sprintf("%.2f", t.PerSuccess())
	})
	for _, label := range slices.Sorted(maps.Keys(r.All.Answers)) {
		row("  answered "+label, number(func(t *Tally) int { return t.Answers[label] }))
	}
	row("  timed out", number(func(t *Tally) int { return t.TimedOut }))
	row("  no connection, or broken", number(func(t *Tally) int { return t.Unreachable }))
	if cut := func(t *Tally) int { return t.CutOff }; some(cut) {
		row("  under way when stopped", number(cut))
		row("    the oldest for", func(t *Tally) string {
			if t.CutOff == 0 {
				return "-"
			}
			return people(t.OldestCut)
		})
	}
	return tw.Flush()
}

func writeTimes(w io.Writer, c LoadConfig, r LoadResult) error {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	line := func(label string, q Quantiles) {
		if q.Count == 0 {
			return
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t\n", label, people(q.P50), people(q.P90), people(q.P99), people(q.P999), people(q.Max))
	}
	width := 0
	labels := func(name string) (wait, attempt string) {
		if name != "" {
			name += ": "
		}
		return name + "wait of those served, with retries", name + "one attempt that was answered"
	}
	const late = "of that, late in leaving this machine"
	groups := c.groups(&r)
	if len(groups) == 1 {
		groups[0].name = ""
	}
	for _, g := range groups {
		wait, attempt := labels(g.name)
		width = max(width, len(wait), len(attempt))
	}
	width = max(width, len(late))
	pad := func(s string) string { return fmt.Sprintf("%-*s", width, s) }
	fmt.Fprintf(tw, "%s\tp50\tp90\tp99\tp99.9\tmax\t\n", pad("from the instant a request was due"))
	for _, g := range groups {
		wait, attempt := labels(g.name)
		line(pad(wait), g.Wait)
		line(pad(attempt), g.Attempt)
	}
	line(pad(late), r.All.Late)
	if err := tw.Flush(); err != nil {
		return err
	}
	if r.All.Refused == 0 {
		return nil
	}
	told := fmt.Sprintf("Retry-After told to none of %d refused", r.All.Refused)
	if t := r.All.Told; t.Count > 0 {
		told = fmt.Sprintf("Retry-After told to %d of %d refused: %s least, %s median, %s most", t.Count, r.All.Refused, people(t.Min), people(t.P50), people(t.Max))
	}
	if r.All.Never > 0 {
		told += fmt.Sprintf("; not to come back to %d", r.All.Never)
	}
	_, err := fmt.Fprintf(w, "\n%s\n", told)
	return err
}

func writePolicies(w io.Writer, r LoadResult) error {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(tw, "policy\tclients\tserved\tgave up\tper success\twait p50\tp99")
	for _, p := range r.Policies {
		p50, p99 := "-", "-"
		if p.Served > 0 {
			p50, p99 = people(p.Wait.P50), people(p.Wait.P99)
		}
		fmt.Fprintf(tw, "%v\t%d\t%d\t%d\t%.2f\t%s\t%s\n", p.Policy, p.Clients, p.Served, p.GaveUp, p.PerSuccess(), p50, p99)
	}
	return tw.Flush()
}

// notes returns the reservations that a reader must know.
func (c LoadConfig) notes(r LoadResult) (notes []string) {
	if p99 := r.All.Late.P99; p99 > lateness {
		notes = append(notes, fmt.Sprintf("1 %% of the requests left %s or more after they were due: this machine was too busy, and its latencies are in the figures.", people(p99)))
	}
	if n := r.All.Unreachable; n > 0 {
		notes = append(notes, fmt.Sprintf("%d requests had no connection, or it broke. The last: %s", n, r.Broken))
	}
	if r.Faults > 0 {
		notes = append(notes, fmt.Sprintf("%d connections failed in this machine, not in the target: %s. Raise its limits (ulimit -n), or come with fewer clients.", r.Faults, r.Fault))
	}
	if n := r.All.Skipped - r.All.Overdue; n > 0 {
		notes = append(notes, fmt.Sprintf("%d clients never came, because %d were there already: the load was less than was asked for%s.", n, MaxClients, c.reached(r)))
	}
	if n := r.All.Overdue; n > 0 {
		notes = append(notes, fmt.Sprintf("%d clients never came, because this machine had not started them when their time was over: the load was less than was asked for%s.", n, c.reached(r)))
	}
	if r.All.Served > 0 && r.All.Served < r.All.Clients {
		notes = append(notes, fmt.Sprintf("the waits are those of the clients that were served. The other %d waited in vain, and are not in them.", r.All.Clients-r.All.Served))
	}
	if r.Stopped != nil {
		why := r.Stopped.Error()
		if errors.Is(r.Stopped, ErrRequests) {
			why += fmt.Sprintf(" (--requests %d)", c.Requests)
		}
		note := fmt.Sprintf("the run ended early: %s. %d clients were still trying", why, r.All.Trying)
		if r.All.CutOff > 0 {
			note += fmt.Sprintf(", and %d requests under way", r.All.CutOff)
		}
		notes = append(notes, note+".")
	}
	return notes
}

// reached describes the rate that was reached, if there is one.
func (c LoadConfig) reached(r LoadResult) string {
	if rate := r.RateReached(); c.Rate > 0 && rate > 0 {
		return fmt.Sprintf(", %s clients per second of %s", decimal(rate), decimal(c.Rate))
	}
	return ""
}

// decimal writes a number with four digits, or with all digits before the point.
func decimal(x float64) string {
	if x >= 1000 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.4g", x)
}

// people writes a time with three significant digits, in a unit that fits.
func people(d time.Duration) string {
	switch s := d.Seconds(); {
	case d == 0:
		return "0 s"
	case d < 999500*time.Nanosecond:
		return digits(s*1e6) + " µs"
	case d < 999500*time.Microsecond:
		return digits(s*1e3) + " ms"
	default:
		return digits(s) + " s"
	}
}

func digits(x float64) string {
	switch {
	case x >= 99.95:
		return fmt.Sprintf("%.0f", x)
	case x >= 9.995:
		return fmt.Sprintf("%.1f", x)
	default:
		return fmt.Sprintf("%.2f", x)
	}
}

// percent writes a share, and 100 % only if it is the whole.
func percent(n, of int) string {
	switch p := 100 * float64(n) / float64(cmp.Or(of, 1)); {
	case n == of && of > 0:
		return "100 %"
	case p > 99.9:
		return "99.9 %"
	default:
		return fmt.Sprintf("%.1f %%", p)
	}
}
