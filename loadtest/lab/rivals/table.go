package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/herdshield/shield/loadtest/lab/page"
)

var head = []string{"in front", "Retry-After", "served", "requests per success", "busiest second", "most in the backend", "last served after", "background gave up"}

func (r result) cells() []string {
	perSuccess, last := "-", "-"
	if r.herd.All.Served > 0 {
		perSuccess, last = fmt.Sprintf("%.2f", r.herd.All.PerSuccess()), fmt.Sprintf("%.1f s", r.herd.All.LastServed.Seconds())
	}
	return []string{
		r.rival.name, cmp.Or(r.rival.tells, "-"),
		fmt.Sprintf("%d of %d", r.herd.All.Served, r.herd.All.Clients), perSuccess,
		fmt.Sprint(r.backend.Busiest), fmt.Sprint(r.backend.Peak), last,
		fmt.Sprintf("%d of %d", r.background.All.GaveUp, r.background.All.GaveUp+r.background.All.Served),
	}
}

// writeTable writes the results, one line each.
func writeTable(w io.Writer, markdown bool, results []result) error {
	rows := [][]string{head}
	for _, r := range results {
		rows = append(rows, r.cells())
	}
	if markdown {
		_, err := io.WriteString(w, page.Markdown(rows, 2))
		return err
	}
	return page.Text(w, rows)
}

// slack is how many times what its config says may be seen to reach the backend in a
// second: two windows of a second can both be used up within one, and what was let
// through just before comes late while a herd keeps the machine busy (161 of 100 were
// seen). More is no limit. shield paces, and has to keep to its own.
const (
	slack       = 2
	shieldSlack = 1.1
)

// check returns an error that names what is not as it must be, for the measurement to
// be one: see the package comment.
func (r result) check() error {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", r.rival.name, fmt.Sprintf(format, args...)))
	}
	if r.rival.name == shieldName && (r.herd.All.Served != r.herd.All.Clients || r.herd.All.GaveUp != 0) {
		wrong("%d of %d served, %d gave up; must be all, and 0", r.herd.All.Served, r.herd.All.Clients, r.herd.All.GaveUp)
	}
	if r.herd.All.Served == 0 {
		wrong("no client served: it does not work")
	}
	busiest := r.backend.Busiest
	if r.rival.most == nil {
		if busiest < r.herd.All.Clients*9/10 {
			wrong("%d reached the backend in its busiest second; must be most of the %d, as they came at once", busiest, r.herd.All.Clients)
		}
	} else if most := r.most(); busiest > most {
		wrong("%d reached the backend in its busiest second; must be at most %d, as configured", busiest, most)
	}
	if r.rival.tells != "" && r.herd.All.Rejected == 0 {
		wrong("it has rejected no request")
	}
	return errors.Join(errs...)
}

// most is how many may be seen to reach the backend in a second.
func (r result) most() int {
	slack := float64(slack)
	if r.rival.name == shieldName {
		slack = shieldSlack
	}
	return int(slack * float64(r.rival.most(r.scenario)))
}
