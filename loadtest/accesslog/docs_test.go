package accesslog

import (
	"bytes"
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
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
// answers the others 503 with Retry-After: 5. Of the clients 50 % obey, 25 % back off with
// full jitter, 15 % come every 2 s and 10 % do not come back.
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
		wait, again := v.policy.Next(clients.Refused{
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

const page = "../../docs/capacity-planning.md"

// The documentation shows the real output.
func TestDocumentation(t *testing.T) {
	if raceEnabled {
		t.Skip("needs a build without the race detector: it reads long logs")
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	e := read(t, pen{}.write(t, shop()))
	var table bytes.Buffer
	if err := e.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{trimmed(table.String()), e.Suggest()} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s does not show:\n%s", page, want)
		}
	}
	// And it is close to the truth.
	for i, share := range []float64{0.50, 0.25, 0.15, 0.10} {
		if i >= len(e.Returns) || math.Abs(e.Returns[i].Share-share) > 0.04 {
			t.Errorf("share %s: %+v", strconv.FormatFloat(share, 'f', 2, 64), e.Returns)
		}
	}
	within(t, "the rate", e.Rate, 30+3000.0/1200, 0.05)
	within(t, "the rate without the herd", e.Calm, 30, 0.02)
	within(t, "the capacity", e.Answers.Full, 60, 0.05)
}

// trimmed is text without spaces at the ends of lines.
func trimmed(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}
