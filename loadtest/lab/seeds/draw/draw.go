package main

import (
	"fmt"
	"image/color"
	"math"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	vgdraw "gonum.org/v1/plot/vg/draw"

	"github.com/herdshield/shield/loadtest/lab/page"
	"github.com/herdshield/shield/loadtest/lab/seeds"
)

func (f *figures) pictures() []page.Picture {
	return []page.Picture{f.drawBursts(), f.drawWaves(), f.drawRidges(), f.drawAWS(), f.drawLadder()}
}

func line(points plotter.XYs, c color.Color) *plotter.Line {
	return &plotter.Line{XYs: points, LineStyle: vgdraw.LineStyle{Color: c, Width: 1.75}}
}

const perClient = "retries per client and s"

func (f *figures) drawBursts() page.Picture {
	const step = 250 * time.Millisecond
	pic := page.Picture{File: "seeds-bursts.svg", Height: 620 * page.Pixel}
	for i, b := range []struct {
		name, title string
		most, marks float64
	}{
		{"aws-exponential", "Plain exponential back-off, 1 s doubling: all together, ever further apart", 4.5, 1},
		{"google-analytics", "Google Analytics, up to 1 s of jitter: ever wider bursts, silence between them, and an end", 1.2, 0.5},
		{"go-array", "The Go array: six retries within two seconds (cut off), then one every 5 s, for ever", 1.2, 0.5},
	} {
		o := f.outages[b.name]
		p := page.Frame(b.title, "", perClient)
		if i == 2 {
			p.X.Label.Text = "seconds since all failed"
		}
		p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, seeds.Shown.Seconds(), 0, b.most
		p.X.Tick.Marker, p.Y.Tick.Marker = page.Every(5), page.Every(b.marks)
		var points plotter.XYs
		for at := time.Duration(0); at < seeds.Shown; at += step {
			points = append(points, plotter.XY{X: at.Seconds(), Y: min(b.most, (o.By(at+step)-o.By(at))/step.Seconds())})
		}
		p.Add(page.Bars(points, seeds.Shown.Seconds(), 0, page.Orange))
		if b.name == "go-array" {
			p.Add(page.Dashed(1, plotter.XYs{{X: 0, Y: 0.2}, {X: seeds.Shown.Seconds(), Y: 0.2}}...))
		}
		pic.Panels = append(pic.Panels, page.Panel{Plot: p})
	}
	return pic
}

// waving are the policies of the three graphs of "Exponential back-off, revisited".
var waving = []string{"google-http-java-client", "binary-exponential", "modified-binary-exponential"}

// drawWaves draws these on logarithmic scales, on which all waves are as wide.
func (f *figures) drawWaves() page.Picture {
	const from, least, most = 0.25, 0.01, 3
	pic := page.Picture{File: "seeds-waves.svg", Height: 660 * page.Pixel}
	for i, title := range []string{
		"google-http-java-client, × 1.5 ± 50%: every wave rises again",
		"Binary exponential, 0 to 2^n: waves that overlap rise a little",
		"Modified binary exponential, one retry in each window: it never rises",
	} {
		o := f.outages[waving[i]]
		p := page.Frame(title, "", perClient)
		if i == 2 {
			p.X.Label.Text = "seconds since all failed, logarithmic"
		}
		p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = math.Log(from), math.Log(seeds.Shown.Seconds()), math.Log(least), math.Log(most)
		p.X.Tick.Marker = logarithmic(0.25, 0.5, 1, 2, 4, 8, 16, 32, 60)
		p.Y.Tick.Marker = logarithmic(0.01, 0.03, 0.1, 0.3, 1, 3)
		var points plotter.XYs
		curve, next := o.Curve(seeds.Smooth), from
		for _, c := range curve {
			if c.At >= next { // as many points as can be seen
				points = append(points, logs(c.At, max(least, c.Rate)))
				next = c.At * 1.01
			}
		}
		p.Add(&plotter.Line{XYs: points, FillColor: page.Blue})
		if i < 2 {
			labels := plotter.XYLabels{}
			for _, w := range f.rises(waving[i], math.Inf(1)) {
				labels.XYs = append(labels.XYs, logs(w.Top.At*0.93, w.Top.Rate*1.25))
				labels.Labels = append(labels.Labels, fmt.Sprintf("× %.2f", w.Rise()))
			}
			p.Add(page.Labels(labels))
		} else {
			p.Add(page.Dashed(1, law(from)...))
		}
		pic.Panels = append(pic.Panels, page.Panel{Plot: p})
	}
	return pic
}

// law is that of the modified policy: 1/2^⌊log2(t+2)⌋.
func law(from float64) (points plotter.XYs) {
	for k := 1; ; k++ {
		start, end, y := math.Exp2(float64(k))-2, math.Exp2(float64(k+1))-2, math.Exp2(-float64(k))
		points = append(points, logs(max(from, start), y), logs(min(end, seeds.Shown.Seconds()), y))
		if end >= seeds.Shown.Seconds() {
			return points
		}
	}
}

// logs is a point on logarithmic scales. gonum's own leave room at the end of an axis
// that has a label.
func logs(x, y float64) plotter.XY { return plotter.XY{X: math.Log(x), Y: math.Log(y)} }

// ridges are the policies of the picture of all, from above.
var ridges = []string{
	"try-n-times", "clojure", "aws-exponential", "server-timing", "paranoid-pirate", "tcp-rto", "docker-restart", "ethernet",
	"google-analytics", "aws-equal-jitter", "hadoop", "google-sre", "go-array",
	"google-http-java-client", "aws-full-jitter", "aws-decorrelated", "binary-exponential", "modified-binary-exponential",
}

// spread is the first of the ridges that spreads its clients over all of the time.
const spread = 13

func (f *figures) drawRidges() page.Picture {
	const step, full = 250 * time.Millisecond, 4.0 // all in one bar
	p := page.Frame("Retries after all clients fail (square root; full height: every client in ¼ s)", "seconds since all failed", "")
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, seeds.Shown.Seconds(), 0, float64(len(ridges))+0.1
	p.X.Tick.Marker = page.Every(5)
	var names []plot.Tick
	for i, name := range ridges {
		base := float64(len(ridges) - 1 - i)
		names = append(names, plot.Tick{Value: base + 0.3, Label: name})
		o := f.outages[name]
		points := plotter.XYs{{X: 0, Y: base}}
		last := base
		for at := time.Duration(0); at <= seeds.Shown; at += step {
			y := base
			if at < seeds.Shown {
				rate := (o.By(at+step) - o.By(at)) / step.Seconds()
				y += math.Round(850*math.Sqrt(min(1, rate/full))) / 1000
			}
			if math.Abs(y-last) > 0.012 || y == base && last != base { // a third of a pixel is noise
				points = append(points, plotter.XY{X: at.Seconds(), Y: last}, plotter.XY{X: at.Seconds(), Y: y})
				last = y
			}
		}
		shape, err := plotter.NewPolygon(points)
		if err != nil {
			panic(err) // a point that is not a number
		}
		shape.Color, shape.LineStyle = page.Orange, vgdraw.LineStyle{}
		if i >= spread {
			shape.Color = page.Blue
		}
		p.Add(shape, &plotter.Line{
			XYs:       plotter.XYs{{X: 0, Y: base}, {X: seeds.Shown.Seconds(), Y: base}},
			LineStyle: vgdraw.LineStyle{Color: color.Gray{0xb0}, Width: 0.5},
		})
	}
	p.Y.Tick.Marker, p.Y.Tick.Length, p.Y.LineStyle.Width = plot.ConstantTicks(names), 0, 0
	p.Y.Tick.LineStyle.Width = 0
	return page.Picture{File: "seeds-policies.svg", Height: 620 * page.Pixel, Panels: []page.Panel{{Plot: p}}}
}

func (f *figures) drawAWS() page.Picture {
	colours := map[string]color.Color{"none": color.Black, "exponential": page.Vermillion, "equal": page.Purple, "full": page.Blue, "decorrelated": page.Green}
	pic := page.Picture{File: "seeds-aws.svg", Height: 560 * page.Pixel}
	for i, of := range []struct {
		title, y string
		value    func(seeds.Contention) float64
	}{
		{"Many clients write one row: what it takes until all have", "calls", func(c seeds.Contention) float64 { return c.Calls }},
		{"", "seconds, logarithmic", func(c seeds.Contention) float64 { return math.Log(c.Time.Seconds()) }},
	} {
		p := page.Frame(of.title, "", of.y)
		p.X.Min, p.X.Max, p.X.Tick.Marker = 0, 200, page.Every(20)
		d := page.Panel{Plot: p, Apart: 92}
		for _, b := range seeds.Backoffs {
			var points plotter.XYs
			for _, n := range writers {
				points = append(points, plotter.XY{X: float64(n), Y: of.value(f.contends[b.Name][n])})
			}
			l := line(points, colours[b.Name])
			p.Add(l)
			if i == 0 {
				d.Legend = append(d.Legend, page.Entry{Text: jitter[b.Name], Line: l})
			}
		}
		if i == 0 {
			p.Y.Min, p.Y.Max, p.Y.Tick.Marker = 0, 10_000, page.Every(2000)
		} else {
			p.Y.Min, p.Y.Max, p.Y.Tick.Marker = math.Log(0.3), math.Log(150), logarithmic(0.3, 1, 3, 10, 30, 100)
			p.X.Label.Text = "clients"
		}
		pic.Panels = append(pic.Panels, d)
	}
	return pic
}

func (f *figures) drawLadder() page.Picture {
	p := page.Frame("A herd that can be served at one client per slot: how long it takes", "clients, n", "slots per client")
	first, last := float64(herds[0]), float64(herds[len(herds)-1])
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = math.Log(first), math.Log(last), 0, 9
	p.X.Tick.Marker, p.Y.Tick.Marker = logarithmic(10, 100, 1000, 10_000, 100_000), page.Every(1)
	d := page.Panel{Plot: p, Apart: 120}
	for _, l := range []struct {
		ladder, text string
		colour       color.Color
	}{
		{doubling, "windows of 2^k", page.Vermillion}, {fitting, "windows of n", page.Green}, {told, "shield's slots", page.Blue},
	} {
		var points plotter.XYs
		for _, n := range herds {
			points = append(points, plotter.XY{X: math.Log(float64(n)), Y: f.ladder[l.ladder][n].Slots / float64(n)})
		}
		drawn := line(points, l.colour)
		p.Add(drawn)
		d.Legend = append(d.Legend, page.Entry{Text: l.text, Line: drawn})
	}
	// The laws, with the factors that fit best from a hundred on.
	for _, l := range []struct {
		ladder string
		law    func(n float64) float64
	}{
		{doubling, func(n float64) float64 { return math.Log2(n) }},
		{fitting, func(n float64) float64 { return math.Log2(math.Log2(n)) }},
	} {
		factor, fits := 0.0, 0.0
		for _, n := range herds {
			if n >= 100 {
				factor, fits = factor+f.ladder[l.ladder][n].Slots/float64(n)/l.law(float64(n)), fits+1
			}
		}
		factor /= fits
		var points plotter.XYs
		for x := first; x < last*1.001; x *= math.Pow(10, 0.125) {
			points = append(points, plotter.XY{X: math.Log(x), Y: factor * l.law(x)})
		}
		drawn := page.Dashed(1, points...)
		p.Add(drawn)
		if l.ladder == fitting {
			d.Legend = append(d.Legend, page.Entry{Text: "lg n, lg lg n", Line: drawn})
		}
	}
	return page.Picture{File: "seeds-ladder.svg", Height: 380 * page.Pixel, Panels: []page.Panel{d}}
}

// logarithmic marks these values on a logarithmic scale.
func logarithmic(at ...float64) plot.ConstantTicks {
	var ticks []plot.Tick
	for _, v := range at {
		ticks = append(ticks, page.Tick(math.Log(v), v))
	}
	return ticks
}
