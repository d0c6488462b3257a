package accesslog

import (
	"bytes"
	"compress/gzip"
	"container/heap"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/pushback"
)

// A visit is a future attempt.
type visit struct {
	event
	attempt int
	begin   time.Duration
	gap     time.Duration
	policy  clients.Policy
}

type visits []visit

func (v visits) Len() int           { return len(v) }
func (v visits) Less(i, j int) bool { return v[i].at < v[j].at }
func (v visits) Swap(i, j int)      { v[i], v[j] = v[j], v[i] }
func (v *visits) Push(x any)        { *v = append(*v, x.(visit)) }
func (v *visits) Pop() any {
	last := (*v)[len(*v)-1]
	*v = (*v)[:len(*v)-1]
	return last
}

// shop is the log of the documentation: 20 minutes of 30 requests per second, and
// after 8 minutes 3,000 clients at once. The server has a capacity of 60 per second and
// answers the others 503 with Retry-After: 5. Of the clients 50% obey, 25% back off with
// full jitter, 15% come every 2 s and 10% do not come back.
func shop() (all []event) {
	population := clients.Population{
		{Weight: 50, Policy: clients.Exact{}},
		{Weight: 25, Policy: clients.Ignore{}},
		{Weight: 15, Policy: clients.Fixed{Gap: 2 * time.Second}},
		{Weight: 10, Policy: clients.GiveUp{}},
	}
	random := rand.New(rand.NewPCG(2026, 3))
	var due visits
	join := func(at time.Duration, client int) {
		u := float64(uint32(client)*2654435761) / (1 << 32) // the same policy for all that a client does
		due = append(due, visit{
			event:   event{at: at, client: client, path: fmt.Sprintf("/item/%d?session=%d", random.IntN(500), client)},
			attempt: 1, begin: at, policy: population[population.Pick(u)].Policy,
		})
	}
	for at := time.Duration(0); at < 20*time.Minute; at += time.Duration(random.ExpFloat64() / 30 * 1e9) {
		join(at, random.IntN(6000))
	}
	for i := range 3000 {
		join(8*time.Minute+time.Duration(random.IntN(300))*time.Millisecond, 10_000+i)
	}
	heap.Init(&due)
	const rate, burst = 60, 20
	tokens, last := float64(burst), time.Duration(0)
	for len(due) > 0 {
		v := heap.Pop(&due).(visit)
		tokens = math.Min(burst, tokens+rate*(v.at-last).Seconds())
		last = v.at
		if tokens >= 1 {
			tokens--
			v.status, v.took = 200, 20*time.Millisecond+time.Duration(random.ExpFloat64()*60e6)
			all = append(all, v.event)
			continue
		}
		v.status, v.took, v.header = 503, time.Duration(50+random.IntN(200))*time.Microsecond, http.Header{"Retry-After": {"5"}}
		all = append(all, v.event)
		wait, again := v.policy.Next(clients.Rejected{
			Attempt: v.attempt, Hint: pushback.Hint{Seconds: 5, Ms: 5000}, Gap: v.gap, Elapsed: v.at - v.begin, U: random.Float64(),
		})
		if again {
			v.header = nil
			v.at += v.took + wait + 15*time.Millisecond + time.Duration(random.ExpFloat64()*30e6)
			v.gap = wait
			v.attempt++
			heap.Push(&due, v)
		}
	}
	return all
}

const page = "../../docs/guides/plan-from-your-log.md"

// The documentation shows the real output.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	e := read(t, pen{}.write(t, shop()))
	var table bytes.Buffer
	if err := e.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	if want := regexp.MustCompile(` +\n`).ReplaceAllString(table.String(), "\n"); !strings.Contains(string(text), want) {
		t.Errorf("%s does not show:\n%s", page, want)
	}
	// And it is close to the truth.
	for i, share := range []float64{0.50, 0.25 + 0.15, 0.10} {
		if i >= len(e.Returns) || math.Abs(share-float64(e.Returns[i].Clients)/float64(e.Judged)) > 0.04 {
			t.Errorf("share %.2f: %+v", share, e.Returns)
		}
	}
	within(t, "the rate", e.Rate, 30+3000.0/1200, 0.05)
	within(t, "the rate without the herd", e.Calm, 30, 0.02)
	within(t, "the capacity", e.Full, 60, 0.05)
}

// Files may be gzipped, in members, and cut off; lines of several servers may be merged, as the
// documentation says, and come in nearly any order. Otherwise the table warns.
func TestFiles(t *testing.T) {
	log := pen{}.write(t, steadyTraffic(5, 10*time.Minute, 50*time.Millisecond, 50))
	long := pen{}.write(t, steadyTraffic(2, 30*time.Minute, 50*time.Millisecond, 50))
	zipped := func(log []byte) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(log)
		_ = z.Close()
		return b.Bytes()
	}
	lines := bytes.SplitAfter(bytes.TrimSuffix(log, []byte("\n")), []byte("\n"))
	lines[len(lines)-1] = append(bytes.Clone(lines[len(lines)-1]), '\n')
	slices.Reverse(lines)
	reversed := bytes.Join(lines, nil)
	half := bytes.LastIndexByte(log[:len(log)/2], '\n') + 1

	const command = "LC_ALL=C sort -t: -k3,3n node1.log node2.log"
	if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), command) {
		t.Fatalf("%s does not show %q: %v", page, command, err)
	}
	dir := t.TempDir()
	for _, name := range []string{"node1.log", "node2.log"} {
		if err := os.WriteFile(filepath.Join(dir, name), reversed, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
	cmd.Dir = dir
	merged, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		log  []byte
		rate float64 // 0: the table warns
	}{
		"plain":                   {log, 5},
		"gzip":                    {zipped(log), 5},
		"two members, as cat has": {append(zipped(log[:half]), zipped(log[half:])...), 5},
		"newest first":            {reversed, 5},
		"two servers, merged":     {merged, 10},
		"two servers, one by one": {slices.Concat(long, long), 0},
	} {
		e := read(t, c.log)
		warns := strings.Contains(table(t, e), "sort the lines by time")
		if warns != (c.rate == 0) || !warns && math.Abs(e.Rate/c.rate-1) > 0.06 {
			t.Errorf("%s: the rate is %.2f, warns %v; want %v", name, e.Rate, warns, c.rate)
		}
	}
	// A file that is cut off gives an Estimate of its beginning, and an error.
	short := zipped(log)
	e, err := Read(bytes.NewReader(short[:len(short)*2/3]))
	if !errors.Is(err, io.ErrUnexpectedEOF) || e == nil || e.Requests == 0 || e.Requests >= 3100 {
		t.Errorf("a file that was cut off: %v, %v", e, err)
	}
	for in, want := range map[string]string{
		"":                                  "0 lines were read",
		"hello\n":                           "1 line was read, 0 of other loggers and 1 broken; use the log of a site",
		"{\"logger\":\"tls\",\"ts\":1.7e9}": "1 of other loggers",
		"\x1f\x8b":                          "unexpected EOF",
	} {
		if e, err := Read(strings.NewReader(in)); e != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want an error with %q", in, e, err, want)
		}
	}
}
