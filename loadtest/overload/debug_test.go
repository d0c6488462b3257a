package overload

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"testing"
	"time"
	"sync"

	"github.com/herdshield/shield/loadshed"
)

type best struct{ Good float64; Limit int }

func bests(seed uint64) []best {
	name := fmt.Sprintf("/tmp/best%d.json", seed)
	var out []best
	if b, err := os.ReadFile(name); err == nil {
		json.Unmarshal(b, &out)
		return out
	}
	out = make([]best, Drawn)
	var wg sync.WaitGroup
	sem := make(chan int, 2)
	for i := range uint64(Drawn) {
		wg.Add(1)
		go func() {
			sem <- 1
			defer func() { <-sem; wg.Done() }()
			s := Draw(seed, i)
			nw := float64(s.Plant.Workers) + s.Capacity*s.Plant.Delay.at(0, 0)
			for _, f := range []float64{.7, .85, 1, 1.15, 1.3, 1.6, 2, 2.5, 3.5} {
				l := int(math.Ceil(nw * f))
				if g := Run(s, Fixed(l), seed+i).Between(100, 180).Goodput(); g > out[i].Good {
					out[i] = best{g, l}
				}
			}
		}()
	}
	wg.Wait()
	b, _ := json.Marshal(out)
	os.WriteFile(name, b, 0o644)
	return out
}

func practice(verbose bool) {
	lines := make([]string, 4)
	var wg sync.WaitGroup
	for k := range 4 {
		seed := uint64(100 + k)
		bs := bests(seed)
		wg.Add(1)
		go func() {
			defer wg.Done()
			row := Row{Build: build(loadshed.Config{})}
			s := row.Play(seed)
			var rel []float64
			for i := range uint64(Drawn) {
				rel = append(rel, 100*s.Goodput[i]/bs[i].Good)
				if verbose {
					lines[k] += fmt.Sprintf("%5.1f (%.1f of %.1f @%d) ref %5.2f after %5.1f p99 %5.1f  [%d] %s\n", rel[i], s.Goodput[i], bs[i].Good, bs[i].Limit, s.RefusedFirst[i], s.After[i], s.P99[i], seed, Draw(seed, i).Name)
				}
			}
			lines[k] += fmt.Sprintf("SET %d nominal %.1f/%.1f rel %.1f/%.1f refused mean %.2f worst %.2f after worst %.1f p99 mean %.1f\n", seed, mean(s.Goodput), least(s.Goodput), mean(rel), least(rel), mean(s.RefusedFirst), greatest(s.RefusedFirst), least(s.After), mean(s.P99))
		}()
	}
	wg.Wait()
	for _, l := range lines {
		fmt.Print(l)
	}
}

func TestDebugNamed(t *testing.T) {
	out := make([]string, len(columns))
	var wg sync.WaitGroup
	sem := make(chan int, 2)
	for i, c := range columns {
		wg.Add(1)
		go func() {
			sem <- 1
			defer func() { <-sem; wg.Done() }()
			values := make([][]float64, len(c.figures))
			for seed := uint64(1000); seed < 1006; seed++ {
				if i == 1 && seed > 1003 { break }
				r := Run(c.scenario(), build(loadshed.Config{}), seed)
				for k, f := range c.figures {
					values[k] = append(values[k], f.of(r))
				}
			}
			for k, f := range c.figures {
				out[i] += fmt.Sprintf("%s %.1f [%s]; ", f.name, mean(values[k]), between(values[k]))
			}
		}()
	}
	wg.Wait()
	for _, l := range out {
		fmt.Println("  ", l)
	}
}

func TestDebugSets(t *testing.T) { practice(os.Getenv("V") != "") }

func TestDebugOne(t *testing.T) {
	seed, _ := strconv.ParseUint(os.Getenv("SEED"), 10, 64)
	i, _ := strconv.ParseUint(os.Getenv("I"), 10, 64)
	s := Draw(seed, i)
	seed += i
	if n := os.Getenv("NAME"); n != "" {
		for _, c := range columns { if x := c.scenario(); x.Name == n { s = x; seed -= i } }
	}
	var a *AdaptiveLimiter
	r := Run(s, func(w *World) Limiter { n := 0; if os.Getenv("Q") != "" { n = QueueLength }; a = NewAdaptive(w, loadshed.Config{}, n); return a }, seed)
	fmt.Println(s.Name)
	for k, x := range r.Seconds {
		if k%5 == 0 {
			fmt.Printf("%d: offered %d att %d good %d refused %d timedout %d limit %d\n", k, x.Offered, x.Attempts, x.Good, x.Refused, x.TimedOut, x.Limit)
		}
	}
	for _, c := range a.Changes {
		fmt.Println(c.At.Truncate(time.Millisecond), c.From, c.To, c.Reason, c.Latency.Truncate(time.Millisecond), c.Baseline.Truncate(time.Millisecond))
	}
}

func build(c loadshed.Config) func(*World) Limiter {
	if os.Getenv("Q") != "" {
		return Queued(c)
	}
	return Adaptive(c)
}
