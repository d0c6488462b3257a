package main

import (
	"bytes"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/sim"
)

const docs = "../../../docs"

// The documentation shows figures of this version.
func TestDocsAreUpToDate(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("needs a build without the race detector, and no -short: it plays everything")
	}
	folder := t.TempDir()
	for _, name := range []string{"pushback.md", "loadshedding.md"} {
		page, err := os.ReadFile(filepath.Join(docs, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), page, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := write(folder); err != nil {
		t.Fatal(err)
	}
	herd := []string{"2,500", "seconds since the crowd came", "requests per second", "came", "admitted", "capacity: 100", "10,000", "70"}
	for file, says := range map[string][]string{
		"pushback-fixed.svg": herd, "pushback-shield.svg": herd, "pushback.md": nil,
		limitFile:         {"seconds since the overload began", "requests in flight", "requests per second", "workers: 8", "capacity: 160", "800", "served", "probe", "-20", "140"},
		"loadshedding.md": nil,
	} {
		want, err := os.ReadFile(filepath.Join(folder, file))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, ".svg") {
			checkSVG(t, file, want, says)
		}
		// Other processors multiply and add in one step, and round once.
		if runtime.GOARCH != "amd64" {
			continue
		}
		if got, _ := os.ReadFile(filepath.Join(docs, file)); !bytes.Equal(got, want) {
			t.Errorf("docs/%s is out of date. Run, at the top: go -C loadtest/lab run ./pictures ../../docs", file)
		}
	}
}

// checkSVG wants a document that is well-formed, small, and says what it shows.
func checkSVG(t *testing.T, file string, doc []byte, says []string) {
	if len(doc) > 50_000 {
		t.Errorf("%s has %d bytes, want at most 50,000", file, len(doc))
	}
	var text strings.Builder
	for d := xml.NewDecoder(bytes.NewReader(doc)); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if chars, ok := token.(xml.CharData); ok {
			text.Write(chars)
		}
	}
	for _, want := range says {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%s does not say %q", file, want)
		}
	}
}

// The pictures show what the page says about them: pulses under a fixed
// Retry-After, and a crowd that comes at what the backend can do under shield.
func TestStory(t *testing.T) {
	var most [2]float64 // per second, in a bin after the first second
	for i, p := range pictures {
		r, err := sim.Run(crowd(), p.server)
		if err != nil {
			t.Fatal(err)
		}
		for _, xy := range draw("", r.Series).Legend[0].Line.XYs {
			if xy.X >= 1 {
				most[i] = max(most[i], xy.Y)
			}
		}
		if done := r.Waiting == 0; done != (p.server == nil) {
			t.Errorf("%s: %d wait at the end", p.file, r.Waiting)
		}
		var admitted int32
		for _, b := range r.Series[int(warmup/bin):] {
			admitted += b.Herd.Admitted
		}
		if p.server != nil && float64(admitted) > 0.5*(after.Seconds()*50) {
			t.Errorf("%s: %d were admitted, want less than half of the spare rate", p.file, admitted)
		}
	}
	if most[0] < 50*capacity {
		t.Errorf("under a fixed Retry-After up to %.0f come per second, want pulses", most[0])
	}
	if most[1] > 1.8*capacity {
		t.Errorf("under shield up to %.0f come per second, want about %d", most[1], capacity)
	}
}

func TestDraw(t *testing.T) {
	series := make([]sim.Bin, int((warmup+time.Second)/bin))
	first := int(warmup / bin)
	series[first] = sim.Bin{Herd: sim.Door{Came: 100, Admitted: 20}, Strangers: sim.Door{Came: 9, Admitted: 8}}
	d := draw("", series)
	for i, want := range []float64{436, 112} { // in a quarter of a second
		line := d.Legend[i].Line.XYs
		before := int(before / bin)
		if at := line[before]; at.X != 0 || at.Y != want {
			t.Errorf("the crowd is drawn at %v, want 0 and %g", at, want)
		}
		if line[before-1].Y != least || line[before+1].Y != least {
			t.Error("an empty bin is drawn")
		}
	}
}

// A cell shows the worst of the runs.
func TestWorst(t *testing.T) {
	run := func(seconds time.Duration, requests, returns, atOnce int) sim.Result {
		return sim.Result{
			Clients: 10, Served: 10, Optimum: 10 * time.Second, Drained: seconds * time.Second, Cleared: (seconds + 1) * time.Second,
			Requests: requests, PeakReturns: returns, Strangers: sim.StrangersResult{Came: 100, AtOnce: atOnce},
			Policies: []sim.PolicyResult{{Policy: clients.Exact{}, Served: 10, Requests: requests, P50: seconds * time.Second, P99: 2 * seconds * time.Second}},
		}
	}
	runs := []sim.Result{run(11, 20, 3000, 90), run(13, 22, 4, 80), run(12, 25, 5, 85)}
	rows := []row{{Scenario: sim.Scenario{Name: "ten"}, runs: runs}}
	if got, want := table("crowd", columns, rows), `| crowd | × least time | × all cleared | requests per client | most returns per 100 ms | strangers at once |
|---|---:|---:|---:|---:|---:|
| ten | 1.30 | 1.40 | 2.50 | 3,000 | 80 % |
`; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got, want := table("who", hammerColumns, rows), "| ten | 13 s | 26 s | 2.5 |  |  |  |\n"; !strings.HasSuffix(got, want) {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	runs[1].Served, runs[1].Waiting, runs[1].Drained = 4, 6, 1000*time.Second
	if got, want := table("crowd", columns, rows), "| ten | 4 served in 1,000 s | never | 5.50 |"; !strings.Contains(got, want) {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestNoRoom(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "pushback.md")
	if err := fill(path, "crowds", strings.NewReader("a table")); err == nil {
		t.Error("a folder without a page is filled")
	}
	if err := os.WriteFile(path, []byte("no room\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := fill(path, "crowds", strings.NewReader("a table")); err == nil || !strings.Contains(err.Error(), "crowds") {
		t.Errorf("error %v, want one that says what is missing", err)
	}
	if page, _ := os.ReadFile(path); string(page) != "no room\n" {
		t.Errorf("the page is %q now", page)
	}
}
