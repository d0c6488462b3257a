package edge

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/herdshield/shield/loadtest/report"
)

// A Report has the services that are compared.
type Report struct {
	Capacity float64   `json:"backend_capacity_per_second"`
	Asked    float64   `json:"asked_per_second"`
	Policies string    `json:"policies"`
	Services []Service `json:"services"`
}

// lengths are those of the pushes that are tried.
func lengths() (all []time.Duration) {
	for l := time.Second; l <= Longest; l *= 2 {
		all = append(all, l)
	}
	return all
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.0f s", d.Seconds()) }

// bar draws the pushes of one length from 1x to Deepest: the service comes back from · and not from █. From a depth of 0 on is none.
func bar(depth float64) string {
	const all = 8
	comesBack := all
	if depth > 0 {
		comesBack = min(all-1, int(math.Round(all*math.Log(depth)/math.Log(Deepest))))
	}
	return strings.Repeat("·", comesBack) + strings.Repeat("█", all-comesBack)
}

func times(depth float64) string { return fmt.Sprintf("%.3gx", depth) }

// edge returns the Edge of a kind; nil if s is lost in calm.
func (s *Service) edge(kind Kind) *Edge {
	i := slices.IndexFunc(s.Edges, func(e Edge) bool { return e.Kind == kind })
	if i < 0 {
		return nil
	}
	return &s.Edges[i]
}

// at returns the smallest depth of a length from which the service does not come back, 0 if there is none.
func (e *Edge) at(length time.Duration) float64 {
	for _, p := range e.Smallest {
		if p.Length == length {
			return p.Depth
		}
	}
	return 0
}

// summary says what the edge of a service is.
func (s *Service) summary(kind Kind) string {
	e := s.edge(kind)
	switch {
	case e == nil:
		return fmt.Sprintf("lost in calm: without a push, %.1f%% of what is asked is answered in time; %.0f%% is enough", 100*s.Calm, 100*Enough)
	case len(e.Smallest) == 0:
		return fmt.Sprintf("comes back from everything up to %v", Push{Deepest, Longest})
	}
	shortest := e.Smallest[0]
	least := slices.MinFunc(e.Smallest, func(a, b Push) int { return cmp.Compare(a.Depth, b.Depth) })
	text := fmt.Sprintf("does not come back from %v", shortest)
	if least != shortest {
		text += fmt.Sprintf(", nor from %v", least)
	}
	return text
}

// WriteTable writes the smallest pushes from which each service does not come back, a picture of all, and what that means.
func (r *Report) WriteTable(w io.Writer) error {
	var tables []report.Table
	for _, kind := range []Kind{Slower, More} {
		t := report.Table{{string(kind) + " for"}}
		for _, s := range r.Services {
			t[0] = append(t[0], s.Name)
		}
		for _, l := range lengths() {
			row := []string{seconds(l)}
			for _, s := range r.Services {
				cell := "lost in calm"
				if e := s.edge(kind); e != nil {
					cell = bar(e.at(l))
					if depth := e.at(l); depth > 0 {
						cell = times(depth) + " " + cell
					}
				}
				row = append(row, cell)
			}
			t = append(t, row)
		}
		tables = append(tables, t)
	}
	var notes strings.Builder
	for _, s := range r.Services {
		for _, n := range s.Notes {
			fmt.Fprintf(&notes, "%s: %s\n", s.Name, n)
		}
		if len(s.Edges) == 0 {
			fmt.Fprintf(&notes, "%s: %s\n", s.Name, s.summary(Slower))
		}
		for _, e := range s.Edges {
			fmt.Fprintf(&notes, "%s, %s: %s\n", s.Name, e.Kind, s.summary(e.Kind))
		}
	}
	if err := report.WriteTables(w, tables...); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n"+notes.String())
	return err
}

// WriteJSON writes all that was tried.
func (r *Report) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }
