package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"image/png"
	"io"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/sim"
)

var update = flag.Bool("update", false, "write the golden files")

// example is two runs, made up: the first serves a herd of 100 in 4 s, the second
// loses most of it.
func example() *Report {
	r := &Report{
		Bin: 500 * time.Millisecond, Warmup: time.Second, Workers: 4, Capacity: 40,
		Marks: []Mark{{"outage", 2 * time.Second, 3 * time.Second}, {"restart", 4 * time.Second, 4 * time.Second}},
	}
	good := sim.Result{
		Name: "a.caddyfile", Seed: 7, Clients: 100, Reachable: 100, Served: 98, GaveUp: 2,
		Drained: 4200 * time.Millisecond, Optimum: 3500 * time.Millisecond, Cleared: 5 * time.Second,
		Decided: 12_345, Answered: 150, Refused: 12_195, Requests: 260, MostAttempts: 5, PeakReturns: 9,
		Policies: []sim.PolicyResult{
			{Policy: clients.Exact{}, Clients: 60, Served: 60, Requests: 120, P50: time.Second, P90: 2 * time.Second, P99: 3 * time.Second},
			{Policy: clients.MaxAttempts{N: 3, Policy: clients.Fixed{Gap: 1500 * time.Millisecond}}, Clients: 40, Served: 38, GaveUp: 2, Requests: 140, P50: 2 * time.Second, P90: 3 * time.Second, P99: 12_340 * time.Millisecond},
		},
		Strangers: sim.StrangersResult{Came: 50, AtOnce: 25, P95: 1500 * time.Millisecond},
	}
	bad := good
	bad.Name, bad.Served, bad.GaveUp, bad.Waiting = "none", 0, 60, 40
	bad.Policies = []sim.PolicyResult{{Policy: clients.Exact{}, Clients: 60, GaveUp: 60}, {Policy: good.Policies[1].Policy, Clients: 40}}
	bad.Strangers.P95, bad.Wasted = 0, 77
	for i := range int32(16) {
		good.Series = append(good.Series, sim.Bin{
			Herd: sim.Door{Came: 30 * (i % 3), Admitted: 10}, Strangers: sim.Door{Came: 5, Admitted: 5},
			Served: 15, Retries: i, InFlight: 3 + i%2, Queued: i % 4, Limit: 8,
		})
		bad.Series = append(bad.Series, sim.Bin{Herd: sim.Door{Came: 500, Admitted: 500}, TimedOut: 400, GaveUp: i, InFlight: 900})
	}
	r.Runs = []Run{{Name: good.Name, Result: good, Notes: []string{"a note"}}, {Name: bad.Name, Result: bad}}
	return r
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s (-update writes it):\n%s\nwant:\n%s", file, got, want)
	}
}

func written(t *testing.T, write func(io.Writer) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTable(t *testing.T) { golden(t, "testdata/table.txt", written(t, example().WriteTable)) }
func TestJSON(t *testing.T) {
	text := written(t, example().WriteJSON)
	golden(t, "testdata/report.json", text)
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Error(err)
	}
}

func TestCSV(t *testing.T) {
	rows, err := csv.NewReader(strings.NewReader(written(t, example().WriteCSV))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 1+2*16 {
		t.Fatalf("%d rows; want a head and 16 for each run", len(rows))
	}
	for i, want := range map[int]string{
		1:  "a.caddyfile,-1,0,10,5,5,0,15,0,0,0,3,0,8",
		4:  "a.caddyfile,0.5,0,10,5,5,3,15,0,0,0,4,3,8",
		32: "none,6.5,500,500,0,0,0,0,15,400,0,900,0,0",
	} {
		if got := strings.Join(rows[i], ","); got != want {
			t.Errorf("row %d is %s; want %s", i, got, want)
		}
	}
}

// texts returns what is written in a picture, which is a whole document.
func texts(t *testing.T, svg string) string {
	t.Helper()
	var b strings.Builder
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if err == io.EOF {
			return b.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		if text, ok := token.(xml.CharData); ok {
			b.WriteString(string(text) + "\n")
		}
	}
}

func TestPictures(t *testing.T) {
	r := example()
	svg := written(t, r.WriteSVG)
	text := texts(t, svg)
	for _, want := range []string{
		"a.caddyfile", "98 of 100 served, all over after 4.20 s", "none", "0 of 100 served, 40 still wait", "came", "of these, admitted",
		"the backend's capacity: 40", "its workers: 4", "timed out (up to 800, cut off)", "gave up", "the limit",
		"waiting before the backend", "exact", "every 1.5s, 3 attempts", "none served", "12.3 s", "outage", "restart", "seconds since the herd came",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the picture does not say %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "-0\n") {
		t.Error("an axis has a -0")
	}
	if again := written(t, example().WriteSVG); again != svg {
		t.Error("the same report gave two pictures")
	}
	p, err := png.Decode(strings.NewReader(written(t, r.WritePNG)))
	if err != nil {
		t.Fatal(err)
	}
	if size := p.Bounds().Size(); size.X != 870*dpi/96 || size.Y < 900 {
		t.Errorf("the PNG is %v; want 870 pixels wide, at %d per 96", size, dpi)
	}

	// What is not there has no panel, no line and no legend.
	for i := range r.Runs {
		for j := range r.Runs[i].Series {
			b := &r.Runs[i].Series[j]
			b.Limit, b.GaveUp, b.TimedOut = 0, 0, 0
		}
	}
	r.Workers, r.Capacity, r.Marks = 0, 0, nil
	text = texts(t, written(t, r.WriteSVG))
	for _, not := range []string{"the limit", "gave up", "timed out", "capacity", "workers", "outage"} {
		if strings.Contains(text, not) {
			t.Errorf("the picture says %q, and there is none", not)
		}
	}
}

// Names and mixes of any length leave a picture.
func TestPicturesOfMuch(t *testing.T) {
	r := example()
	r.Runs[0].Name = strings.Repeat("long ", 100)
	for range 200 {
		r.Runs[0].Policies = append(r.Runs[0].Policies, sim.PolicyResult{Policy: clients.Named{Name: strings.Repeat("x", 300), Policy: clients.Exact{}}, Served: 1, P99: 1000 * time.Hour})
	}
	for len(r.Runs) < maxPictures {
		r.Runs = append(r.Runs, r.Runs[0])
	}
	if text := texts(t, written(t, r.WriteSVG)); len(text) > 100_000 {
		t.Errorf("%d bytes of text", len(text))
	}
	empty := sim.Result{Series: make([]sim.Bin, 3)}
	r.Runs = []Run{{Name: "", Result: empty}}
	written(t, r.WriteSVG)
	written(t, r.WriteTable)
}

func TestPicturesErrors(t *testing.T) {
	for want, wrong := range map[string]func(*Report){
		"there is no run to show":                   func(r *Report) { r.Runs = nil },
		"bin is 0s; want more than 0":               func(r *Report) { r.Bin = 0 },
		`run "none" has no series after its warmup`: func(r *Report) { r.Runs[1].Series = r.Runs[1].Series[:2] },
		"there are 9 runs; want at most 8":          func(r *Report) { r.Runs = make9(r.Runs[0]) },
	} {
		r := example()
		wrong(r)
		for _, write := range []func(io.Writer) error{r.WriteSVG, r.WritePNG} {
			if err := write(io.Discard); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error is %v; want %q", err, want)
			}
		}
	}
}

func make9(r Run) (runs []Run) {
	for range 9 {
		runs = append(runs, r)
	}
	return runs
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestWritersPassErrorsOn(t *testing.T) {
	r := example()
	for name, write := range map[string]func(io.Writer) error{
		"table": r.WriteTable, "JSON": r.WriteJSON, "CSV": r.WriteCSV, "SVG": r.WriteSVG, "PNG": r.WritePNG,
	} {
		if err := write(full{}); err == nil || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("%s: error is %v; want: no space left", name, err)
		}
	}
}

// The picture shows all runs until the last of them is over, in whole bins of its own
// that hold all that came.
func TestSpan(t *testing.T) {
	r := example()
	r.Marks = nil
	r.Runs = r.Runs[:1]
	s, err := r.sheet()
	if err != nil {
		t.Fatal(err)
	}
	if s.from != -500*time.Millisecond || s.to != 5410*time.Millisecond || s.bin != r.Bin {
		t.Errorf("from %v to %v, by %v; want -500ms to 5.41s, by 500ms", s.from, s.to, s.bin)
	}
	long := example()
	long.Bin, long.Warmup = 100*time.Millisecond, 2*time.Minute
	long.Runs = long.Runs[1:]
	came := 0.
	long.Runs[0].Series = make([]sim.Bin, 6200)
	for i := range long.Runs[0].Series {
		long.Runs[0].Series[i].Herd.Came = 3
	}
	if s, err = long.sheet(); err != nil {
		t.Fatal(err)
	}
	for _, p := range s.points[0] {
		came += p.came * s.bin.Seconds()
	}
	if want := 3 * float64((s.to-s.from)/long.Bin); math.Abs(came-want) > 1e-6 || s.to != 500*time.Second || s.bin != 5*time.Second || s.from != -20*time.Second {
		t.Errorf("%v came from %v to %v by %v; want %v, from -20s to 500s, by 5s", came, s.from, s.to, s.bin, want)
	}
}

func TestMarks(t *testing.T) {
	for _, c := range []struct {
		least, most float64
		n           int
		want        string
	}{
		{0, 20, 4, "0 5 10 15 20"}, {-2, 105, 6, "0 20 40 60 80 100"}, {0, 1, 5, "0 0.2 0.4 0.6 0.8 1"}, {0, 12_000, 4, "0 5,000 10,000"},
	} {
		var got []string
		for _, tick := range marks(c.most-c.least, c.n, true)(c.least, c.most) {
			got = append(got, tick.Label)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%v to %v: %s; want %s", c.least, c.most, s, c.want)
		}
	}
	for v, want := range map[float64]string{0: "0", 0.5: "0.5", 123.4: "123.4", 12345.6: "12,346", -2: "-2", 1e6: "1,000,000"} {
		if got := number(v); got != want {
			t.Errorf("%v is %s; want %s", v, got, want)
		}
	}
}
