package main

import (
	"fmt"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/herdshield/shield/loadtest/lab/page"
	"github.com/herdshield/shield/loadtest/sim"
)

// All pictures show the same stretch of time, to the same scale.
const (
	bin    = 250 * time.Millisecond
	warmup = 2 * time.Minute
	before = 2 * time.Second // of calm, before the crowd
	after  = 70 * time.Second

	capacity = 100 // of a herd's backend, per second

	// Requests per second are on a logarithmic scale: what comes at once is a
	// hundred times the capacity. One request per bin is 4.
	least, most = 10, 20_000
)

const height = 360 * page.Pixel

// draw draws what came to the server and what it admitted, and the capacity. The
// series has bins, and the crowd comes after the warmup.
func draw(title string, series []sim.Bin) page.Panel {
	var came, admitted plotter.XYs
	for i, b := range series {
		at := time.Duration(i)*bin - warmup
		if at < -before || at >= after {
			continue
		}
		came = append(came, point(at, b.Herd.Came+b.NewClients.Came))
		admitted = append(admitted, point(at, b.Herd.Admitted+b.NewClients.Admitted))
	}
	rejected, served := page.Bars(came, after.Seconds(), least, page.Orange), page.Bars(admitted, after.Seconds(), least, page.Blue)
	limit := dashed(plotter.XY{X: -before.Seconds(), Y: capacity}, plotter.XY{X: after.Seconds(), Y: capacity})

	p := page.Frame(title, "seconds since the crowd came", "requests per second")
	p.X.Min, p.X.Max = -before.Seconds(), after.Seconds()
	p.Y.Min, p.Y.Max = least, most
	p.Y.Scale = plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = page.Every(10), plot.TickerFunc(powers)
	p.Add(rejected, served, limit)
	return page.Panel{Plot: p, Apart: legendStep, Legend: []page.Entry{
		{Text: fmt.Sprintf("came, in each %g s", bin.Seconds()), Line: rejected},
		{Text: "of these, admitted", Line: served},
		{Text: fmt.Sprintf("the backend's capacity: %d", capacity), Line: limit},
	}}
}

// legendStep is the distance of the entries of a legend.
const legendStep = 170

func dashed(points ...plotter.XY) *plotter.Line {
	l := page.Dashed(1.5, points...)
	l.Dashes = []vg.Length{5, 3}
	return l
}

// point is n requests in the bin at that time, but not below the scale, which
// as all logarithmic scales has no 0.
func point(at time.Duration, n int32) plotter.XY {
	return plotter.XY{X: at.Seconds(), Y: max(least, float64(n)/bin.Seconds())}
}

// powers marks the powers of 10.
func powers(_, most float64) (ticks []plot.Tick) {
	for v := 10; float64(v) <= most; v *= 10 {
		ticks = append(ticks, page.Tick(float64(v), float64(v)))
	}
	return ticks
}
