package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/herdshield/shield/loadtest/lab/page"
)

// A result is a front end in a row, with a figure of each round.
type result struct {
	row    row
	front  front
	rounds []figure
}

// median returns the middle one of something in the rounds.
func (r result) median(of func(figure) float64) float64 {
	all := r.sorted(of)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}

func (r result) sorted(of func(figure) float64) (all []float64) {
	for _, f := range r.rounds {
		all = append(all, of(f))
	}
	slices.Sort(all)
	return all
}

// spread is the least and the most of it, in thousandths.
func (r result) spread(of func(figure) float64) string {
	all := r.sorted(of)
	return fmt.Sprintf("%.1f–%.1f", all[0]/1e3, all[len(all)-1]/1e3)
}

func p50(f figure) float64 { return float64(f.p50) }
func p99(f figure) float64 { return float64(f.p99) }

// busy is how much of its core the front end took.
func busy(f figure) float64 { return f.used.Seconds() / f.took.Seconds() }

// compared is what the row's bounds are about: the price of a request, or the p99.
func (r result) compared() float64 {
	if r.row.live {
		return r.median(p99)
	}
	return r.median(figure.perRequest)
}

// writeTables writes what was measured: the price of a request, and what honest clients had.
func writeTables(w io.Writer, results []result) error {
	prices := [][]string{{"request", "in front", "CPU µs each", "least–most", "per second", "× nginx", "promised"}}
	lives := [][]string{{"load", "in front", "responses per second", "core busy", "honest p50, ms", "p99, ms", "least–most", "× nginx", "promised"}}
	for _, r := range results {
		start := []string{r.row.name, r.front.name}
		per := page.Thousands(int(r.median(figure.perSecond)))
		end := []string{r.times(results, nginx.name), r.promised(results)}
		if r.row.live {
			lives = append(lives, slices.Concat(start, []string{per, fmt.Sprintf("%.2f", r.median(busy)),
				fmt.Sprintf("%.1f", r.median(p50)/1e6), fmt.Sprintf("%.1f", r.median(p99)/1e6), r.spreadMs()}, end))
		} else {
			prices = append(prices, slices.Concat(start, []string{fmt.Sprintf("%.1f", r.compared()/1e3), r.spread(figure.perRequest), per}, end))
		}
	}
	var b strings.Builder
	for _, table := range [][][]string{prices, lives} {
		if len(table) > 1 {
			b.WriteString(page.Markdown(table, 2) + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r result) spreadMs() string {
	return r.spread(func(f figure) float64 { return p99(f) / 1e3 })
}

// times returns how many times as much r takes as another one of its row.
func (r result) times(results []result, of string) string {
	if t := r.ratio(results, of); t > 0 {
		return fmt.Sprintf("%.2f", t)
	}
	return "-"
}

func (r result) ratio(results []result, of string) float64 {
	for _, other := range results {
		if other.row.name == r.row.name && other.front.name == of && other.compared() > 0 {
			return r.compared() / other.compared()
		}
	}
	return 0
}

// promised says what the row has promised for the shield that users get. A bound that is not kept is bold.
func (r result) promised(results []result) string {
	if r.front.name != with.name && r.front.name != proxy.name {
		return ""
	}
	var all []string
	for _, b := range r.row.bounds {
		said, is := fmt.Sprintf("≤ %.2f × %s", b.times, b.of), r.ratio(results, b.of)
		switch b.of {
		case "":
			said, is = fmt.Sprintf("≤ %.0f ms", b.times), r.compared()/1e6
		case nginx.name: // in a column of its own
		default:
			said += ": " + r.times(results, b.of)
		}
		if is > b.times {
			said = "**" + said + "**"
		}
		all = append(all, said)
	}
	return strings.Join(all, ", ")
}

// writeRounds writes what the tables are made of.
func writeRounds(w io.Writer, results []result) error {
	rounds := [][]string{{"request", "in front", "round", "answered", "in s", "CPU s", "CPU µs each", "honest p50, ms", "p99, ms"}}
	for _, r := range results {
		for i, f := range r.rounds {
			rounds = append(rounds, []string{r.row.name, r.front.name, fmt.Sprint(i + 1), fmt.Sprint(f.answered), fmt.Sprintf("%.3f", f.took.Seconds()),
				fmt.Sprintf("%.3f", f.used.Seconds()), fmt.Sprintf("%.2f", f.perRequest()/1e3), fmt.Sprintf("%.2f", p50(f)/1e6), fmt.Sprintf("%.2f", p99(f)/1e6)})
		}
	}
	_, err := io.WriteString(w, page.Markdown(rounds, 2)+"\n")
	return err
}
