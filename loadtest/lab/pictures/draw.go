package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/herdshield/shield/loadtest/lab/page"
	"github.com/herdshield/shield/loadtest/sim"
)

// The pictures of a herd show the same stretch of time, to the same scale. A bar is a second: as long as
// the shortest Retry-After, so that a pulse of retries is one bar.
const (
	bin    = time.Second
	warmup = 2 * time.Minute
	before = 2 * time.Second // of calm, before the herd
	after  = 70 * time.Second

	herdSize = 2500
	capacity = 100  // of a herd's backend, per second
	most     = 2750 // requests per second, at the upper edge
)

// pictured is what the pictures show: a herd that comes in one burst.
func pictured() sim.Scenario {
	s := herd("", herdSize, 59*time.Second)
	s.Seed, s.Warmup, s.Until, s.Bin = 1, warmup, after, bin
	return s
}

// servers are what the herd meets; a nil Maker means shield.
var servers = []struct {
	file, name string
	server     sim.Maker
	text       func(sim.Result) string
}{
	{"pushback-fixed.svg", "Retry-After: 1 for every client", sim.FixedHint(1), func(r sim.Result) string {
		return fmt.Sprintf("The herd keeps returning together. After %g s, %s clients are still waiting.",
			after.Seconds(), page.Thousands(r.Waiting))
	}},
	{"pushback-shield.svg", "shield: an appointment for each client", nil, func(r sim.Result) string {
		return fmt.Sprintf("Clients return one by one, each at its own time. After %.0f s, all %s are served.",
			r.Drained.Seconds(), page.Thousands(r.Served))
	}},
}

// writeHerds draws what arrives at each server and what it admits: a picture for each, and one of both
// side by side.
func writeHerds(folder string) error {
	f := figure{
		title: "Requests per second",
		note:  fmt.Sprintf("All clients obey Retry-After. Another %.0f requests per second arrive throughout.", pictured().Background),
		x:     axis{label: "time since the herd arrived", unit: " s", least: -before.Seconds(), most: after.Seconds()},
		y:     axis{most: most},
		series: []series{
			{name: "rejected", color: 1}, {name: "admitted", color: 2}, {name: fmt.Sprintf("what the backend can serve: %d/s", capacity), level: true},
		},
	}
	for _, s := range servers {
		r, err := sim.Run(pictured(), s.server)
		if err != nil {
			return err
		}
		f.charts = append(f.charts, plotted{name: s.name, text: s.text(r), start: -before.Seconds(), step: bin.Seconds(), values: valuesOf(r.Series)})
	}
	write := func(file string, f figure) error {
		var b bytes.Buffer
		title := fmt.Sprintf("%s clients arrive within 0.1 s", page.Thousands(herdSize))
		if err := writeSVG(&b, title, f); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(folder, file), b.Bytes(), 0o644)
	}
	for i, s := range servers {
		one := f
		one.charts = f.charts[i : i+1]
		if err := write(s.file, one); err != nil {
			return err
		}
	}
	return write("herd-before-after.svg", f)
}

// valuesOf returns what arrived, what of it was admitted, which covers it, and the capacity.
func valuesOf(series []sim.Bin) [][]float64 {
	var arrived, admitted []float64
	for i, b := range series {
		if at := time.Duration(i)*bin - warmup; at >= -before && at < after {
			arrived = append(arrived, float64(b.Herd.Came+b.NewClients.Came)/bin.Seconds())
			admitted = append(admitted, float64(b.Herd.Admitted+b.NewClients.Admitted)/bin.Seconds())
		}
	}
	return [][]float64{arrived, admitted, {capacity}}
}

// legendStep is the distance of the entries of a legend.
const legendStep = 170

func dashed(points ...plotter.XY) *plotter.Line {
	l := page.Dashed(1.5, points...)
	l.Dashes = []vg.Length{5, 3}
	return l
}
