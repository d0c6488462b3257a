package commands

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/oncall"
)

// A topScreen is what top shows.
type topScreen struct {
	watch         adminapi.Watch
	err           error  // of the last second; nil: it was told
	chosen        string // shield; "": the one that matters most
	width, height int    // of the terminal; 0: not known yet
}

// take takes an answer. The state before stays if there is none.
func (s *topScreen) take(answer told) {
	if s.err = answer.err; s.err == nil {
		s.watch = answer.watch
		if s.chosen == "" {
			s.chooseWorst()
		}
	}
}

// shield returns the chosen one; nil if there is none.
func (s *topScreen) shield() *adminapi.ShieldWatch {
	for i := range s.watch.Shields {
		if one := &s.watch.Shields[i]; one.Name == s.chosen {
			return one
		}
	}
	return nil
}

// chooseWorst chooses the shield that matters most, as the page does.
func (s *topScreen) chooseWorst() {
	weight := func(s adminapi.ShieldWatch) int {
		return slices.Index([]oncall.Level{oncall.Good, oncall.Warn, oncall.Bad}, s.Level)
	}
	if list := s.watch.Shields; len(list) > 0 {
		s.chosen = slices.MaxFunc(list, func(a, b adminapi.ShieldWatch) int { return cmp.Compare(weight(a), weight(b)) }).Name
	}
}

func (s *topScreen) names() string {
	var names []string
	for _, one := range s.watch.Shields {
		names = append(names, one.Name)
	}
	return strings.Join(names, ", ")
}

// choose chooses the next shield, or the one before.
func (s *topScreen) choose(step int) {
	n := len(s.watch.Shields)
	if n == 0 {
		return
	}
	is := slices.IndexFunc(s.watch.Shields, func(one adminapi.ShieldWatch) bool { return one.Name == s.chosen })
	s.chosen = s.watch.Shields[(max(0, is)+step+n)%n].Name
}

var (
	strong = ansi.NewStyle().Bold()
	faint  = ansi.NewStyle().Faint()
	levels = map[oncall.Level]ansi.Style{
		oncall.Good: ansi.NewStyle().ForegroundColor(ansi.Green),
		oncall.Warn: ansi.NewStyle().ForegroundColor(ansi.Yellow),
		oncall.Bad:  ansi.NewStyle().ForegroundColor(ansi.Red),
	}
)

// String returns the screen, no line of it wider than the terminal, and no more than it has.
func (s *topScreen) String() string {
	width, height := cmp.Or(s.width, 80), cmp.Or(s.height, 24)
	lines := append(s.head(), s.body(width)...)
	if n := height - 1; len(lines) > n {
		lines = lines[:max(0, n)]
	}
	lines = append(lines, faint.Styled("←→ shield   q end"))
	for i, line := range lines {
		lines[i] = ansi.Truncate(line, width, "")
	}
	return strings.Join(lines, "\n")
}

// head says where this is from, and of which shields.
func (s *topScreen) head() (lines []string) {
	at := time.UnixMilli(s.watch.Now).Format(time.TimeOnly)
	line := strong.Styled("shield top") + "  " + s.watch.Host + "  " + at
	if s.err != nil {
		line += "  " + levels[oncall.Bad].Styled("no answer since then: "+s.err.Error())
	}
	lines = append(lines, line)
	if len(s.watch.Shields) > 1 {
		var tabs []string
		shown := s.shield()
		for i := range s.watch.Shields {
			one := &s.watch.Shields[i]
			tab := levels[one.Level].Styled("●") + " " + one.Name
			if one == shown {
				tab = levels[one.Level].Styled("●") + " " + strong.Underline(true).Styled(one.Name)
			}
			tabs = append(tabs, tab)
		}
		lines = append(lines, strings.Join(tabs, "   "))
	}
	return append(lines, "")
}

// body is about one shield.
func (s *topScreen) body(width int) (lines []string) {
	one := s.shield()
	if one == nil && len(s.watch.Shields) > 0 { // a config without it has been loaded
		return []string{fmt.Sprintf("The running config has no shield %q any more.", s.chosen)}
	}
	if one == nil || one.ShieldDetails == nil {
		return []string{"The running config has no shield."}
	}
	says := one.Says
	if one.Mode != "enforce" {
		says += " (mode " + one.Mode + ")"
	}
	for line := range strings.SplitSeq(ansi.Wrap(says, width, ""), "\n") {
		lines = append(lines, levels[one.Level].Styled(line))
	}
	lines = append(lines, "")
	lines = append(lines, s.rates(one, width)...)
	lines = append(lines, s.state(one, width)...)
	lines = append(lines, s.changed(one.Name)...)
	return append(lines, s.clients(one.Name)...)
}

// labels is how wide the names of figures are, and values how wide they are.
const labelsWide, valuesWide = 21, 14

// row shows a figure, and its course until now.
func row(label, value string, course []uint32, width int) string {
	wide := max(0, width-labelsWide-valuesWide-2)
	return fmt.Sprintf("%-*.*s%*s  %s", labelsWide, labelsWide, label, valuesWide, value, sparkline(course, wide))
}

// sparkline draws the last values, one for each column, to the right.
func sparkline(course []uint32, wide int) string {
	course = course[max(0, len(course)-wide):]
	bars := make([]int, len(course))
	for i, v := range course {
		bars[i] = int(v)
	}
	if len(bars) == 0 {
		return ""
	}
	return strings.Repeat(" ", wide-len(bars)) + oncall.Bars(bars, slices.Max(bars))
}

// course returns a column of the samples, with a value for each second.
func course(samples *oncall.Samples, name string) []uint32 {
	values := samples.Columns[name]
	if len(values) == 1 && samples.Count > 1 {
		values = slices.Repeat(values, samples.Count)
	}
	return values
}

// rates has what is decided on requests, in requests per second.
func (s *topScreen) rates(one *adminapi.ShieldWatch, width int) (lines []string) {
	refused := one.Lately.Refused
	prefix := "refused"
	if one.Mode != "enforce" {
		refused, prefix = one.Lately.Observed, "observed"
	}
	lines = append(lines, row("admitted", each(one.Lately.Admitted), course(&one.Samples, "admitted"), width))
	for _, reason := range slices.Sorted(maps.Keys(refused)) {
		if values := course(&one.Samples, prefix+"."+reason); refused[reason] > 0 || len(values) > 0 {
			lines = append(lines, row(prefix+" "+reason, each(refused[reason]), values, width))
		}
	}
	return lines
}

// state has the figures of this moment that are not all zero.
func (s *topScreen) state(one *adminapi.ShieldWatch, width int) (lines []string) {
	for _, figure := range []struct {
		column, label string
		value         func(now uint32) string
	}{
		{"in_flight", "in flight", func(now uint32) string {
			if limit := last(course(&one.Samples, "limit")); limit > 0 {
				return fmt.Sprintf("%d of %d", now, limit)
			}
			return fmt.Sprint(now)
		}},
		{"limit", "limit (" + one.Limit + ")", func(now uint32) string { return fmt.Sprint(now) }},
		{"queue", "queue", func(now uint32) string { return fmt.Sprintf("%d of %d", now, one.QueueSize) }},
		{"backlog_ms", "backlog", func(now uint32) string { return fmt.Sprintf("%.1f s", float64(now)/1000) }},
		{"deferred", "no appointment", func(now uint32) string { return fmt.Sprint(now) }},
		{"kept", "promises kept", func(uint32) string {
			return fmt.Sprintf("%.0f %%", 100*one.Lately.Kept/max(1e-9, one.Lately.Kept+one.Lately.NoShow))
		}},
		{"broken", "broken", func(now uint32) string { return fmt.Sprintf("%d/s", now) }},
		{"failed", "backend fails", func(now uint32) string { return fmt.Sprintf("%d/s", now) }},
	} {
		if values := course(&one.Samples, figure.column); len(values) > 0 {
			lines = append(lines, row(figure.label, figure.value(last(values)), values, width))
		}
	}
	if w := one.Waiting; w != nil {
		over := "cannot be told while more come"
		if w.Over >= 0 {
			over = "is in " + oncall.Time(time.Duration(w.Over*float64(time.Second)))
		}
		lines = append(lines, fmt.Sprintf("%-*s%*.0f clients; the end %s", labelsWide, "waiting", valuesWide, w.Clients, over))
	}
	if h := one.Herd; h != nil {
		lines = append(lines, fmt.Sprintf("%-*s%*s of %.0f", labelsWide, "herd", valuesWide, h.Kind, h.Size))
	}
	if one.Replicas > 0 {
		how := "together"
		if one.Alone {
			how = "alone: the store does not answer"
		}
		lines = append(lines, fmt.Sprintf("%-*s%*d %s", labelsWide, "replicas", valuesWide, one.Replicas, how))
	}
	return lines
}

func last(values []uint32) uint32 {
	if len(values) == 0 {
		return 0
	}
	return values[len(values)-1]
}

// changed has the overrides that concern a shield, the latest first.
func (s *topScreen) changed(shield string) (lines []string) {
	if s.watch.Overrides == nil {
		return nil
	}
	for _, is := range slices.Backward(s.watch.Overrides.Overrides) {
		if is.Shield != "" && is.Shield != shield {
			continue
		}
		if len(lines) == topOverrides {
			return append(lines, fmt.Sprintf("%*s", labelsWide+valuesWide, "and more"))
		}
		left := oncall.Time(time.Duration(is.Left * float64(time.Second)))
		lines = append(lines, fmt.Sprintf("%-*s%*s  %s; asked by %s", labelsWide, "override, for", valuesWide, left, overrideText(&is), adminapi.Shown(is.By)))
	}
	return lines
}

// topOverrides is how many overrides are shown. Ours: the screen has room for the clients, too.
const topOverrides = 3

// clients has those that were refused most.
func (s *topScreen) clients(shield string) (lines []string) {
	if s.watch.Who == nil {
		return nil
	}
	i := slices.IndexFunc(s.watch.Who.Shields, func(w adminapi.WhoShield) bool { return w.Name == shield })
	if i < 0 || len(s.watch.Who.Shields[i].Refused) == 0 {
		return nil
	}
	lines = []string{"", strong.Styled(fmt.Sprintf("%-28s %10s %11s  %-12s %-8s %s", "refused most", "per second", "last minute", "reason", "agent", "path"))}
	for _, c := range s.watch.Who.Shields[i].Refused {
		lines = append(lines, fmt.Sprintf("%-28.28s %10.1f %11d  %-12s %-8s %s", c.Client, c.PerSecond, c.LastMinute, c.Reason, c.Agent, adminapi.Shown(c.Path)))
	}
	return lines
}
