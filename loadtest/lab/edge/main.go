// Command edge checks "shield simulate --edge" against processes on this machine. It plays pushes of one depth, a
// backend that is four times as slow, in virtual time and live, and compares the lengths from which half of the runs
// come back:
//
//	go -C loadtest/lab run ./edge       # prints the table, in some 25 minutes
//	go -C loadtest/lab run ./edge edge  # fills it into this folder's README.md, too
//
// Live, the backend is a process whose work is to sleep, behind shield's own program or nothing, and clients connect
// over loopback. Both sides have the same config as text, policies, timeouts, rates and criterion, which is edge.Goodput.
// The two sides share no arrivals: they agree as two seeds of one side do. Live, a request also takes the time of
// sockets, of Caddy and of late timers, and there are two processors for all.
//
// A service that comes back from all of the largest pushes in virtual time has no edge: it is to come back live, too.
//
// The exit code is 0 only if all agree: edges to within a fifth.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/herdshield/shield/loadtest/edge"
	"github.com/herdshield/shield/loadtest/lab/page"
	"github.com/herdshield/shield/loadtest/lab/process"
)

// command makes the table of README.md.
const command = "go -C loadtest/lab run ./edge edge"

const (
	ms = time.Millisecond

	// depth is that of the pushes whose length is looked for. Ours: requests that are in work when a push ends take long
	// after a deeper one, and that is left to chance.
	depth = 4

	// most is by how much the live edge may differ from the virtual one.
	most = .2

	// pushes of each of the two series: so the edge has a standard deviation of 3 to 8% live, and 1 to 4% in virtual time.
	pushes, virtualPushes = 24, 150

	// largest pushes: a service that comes back from so many of them in virtual time has to come back live.
	largest, virtualLargest = 3, 20
)

// largestPush is the largest that --edge tries.
var largestPush = edge.Push{Depth: edge.Deepest, Length: edge.Longest}

// short is how the edge's runs go. A service that is not back after ten timeouts of a second does not come back
// in a minute, either: the virtual edges are the same.
var short = course{calm: 3 * time.Second, within: 10 * time.Second, watch: 10 * time.Second}

// services are those of the table, at 75 or 80% of what their backends serve.
var services = []service{
	{2, 20 * ms, 80, time.Second, ""},
	{10, 100 * ms, 80, time.Second, ""},
	{4, 50 * ms, 60, time.Second, ""},
	{2, 20 * ms, 80, time.Second, "concurrency 150"},
	{10, 100 * ms, 80, time.Second, "concurrency 150"},
	{4, 50 * ms, 60, time.Second, "concurrency 150"},
	{2, 20 * ms, 80, time.Second, "concurrency adaptive"},
	{10, 100 * ms, 80, time.Second, "concurrency adaptive"},
	{4, 50 * ms, 60, time.Second, "concurrency adaptive"},
}

func main() {
	if j := os.Getenv(backendVar); j != "" {
		if err := beBackend(j); err != nil {
			fmt.Fprintln(os.Stderr, "Error:", err)
			os.Exit(1)
		}
		return
	}
	together := flag.Int("together", 6, "how many runs are live at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *together, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// A laboratory plays runs live, so many at a time.
type laboratory struct {
	context.Context
	program  string
	together chan struct{}
	progress io.Writer
	mu       sync.Mutex // guards progress
}

// busy is how often a run is played again that says nothing.
const busy = 5

// play plays a push live.
func (l *laboratory) play(s service, c course, p edge.Push, seed uint64) (g float64, err error) {
	l.together <- struct{}{}
	defer func() { <-l.together }()
	for range busy {
		g, err = s.live(l, l.program, c, p, seed)
		l.mu.Lock()
		if err == nil {
			fmt.Fprintf(l.progress, "%s, %q, %gx for %v: goodput %.3f\n", s.backend(), s.front, p.Depth, p.Length.Round(ms), g)
		} else {
			fmt.Fprintf(l.progress, "%s, %q, %gx for %v: %v\n", s.backend(), s.front, p.Depth, p.Length.Round(ms), err)
		}
		l.mu.Unlock()
		if !errors.Is(err, errBusy) {
			break
		}
	}
	return g, err
}

// An outcome is a line of the table.
type outcome struct {
	virtual, live time.Duration // the edges; 0: none
	back          int           // live, from how many of the largest pushes
}

func (o outcome) agrees() bool {
	if o.virtual == 0 {
		return o.back == largest
	}
	return math.Abs(o.ratio()-1) <= most
}

func (o outcome) ratio() float64 { return float64(o.live) / float64(o.virtual) }

// run plays all services, prints the table, and fills it into the page of the folder, if there is one.
func run(ctx context.Context, out io.Writer, together int, folder string) error {
	outcomes := make([]outcome, len(services))
	for i, s := range services {
		var err error
		if outcomes[i].virtual, err = s.virtualEdge(ctx); err != nil {
			return fmt.Errorf("%s, %q: %w", s.backend(), s.front, err)
		}
		fmt.Fprintf(os.Stderr, "%s, %q: the virtual edge is %v\n", s.backend(), s.front, outcomes[i].virtual)
	}
	program, err := process.Program()
	if err != nil {
		return err
	}
	l := &laboratory{Context: ctx, program: program, together: make(chan struct{}, together), progress: os.Stderr}
	var all errgroup.Group
	for i, s := range services {
		all.Go(func() (err error) {
			o := &outcomes[i]
			if o.virtual > 0 {
				o.live, err = edgeOf(depth, o.virtual, pushes, func(p edge.Push, number int) (float64, error) {
					return l.play(s, short, p, uint64(number))
				})
				return err
			}
			o.back, err = l.playLargest(s)
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	rows := table(outcomes)
	if err := page.Text(out, rows); err != nil {
		return err
	}
	if folder != "" {
		if err := page.Fill(folder, "README.md", command, page.Table{Name: "edge", Text: page.Markdown(rows, 4)}); err != nil {
			return err
		}
	}
	var wrong []error
	for i, s := range services {
		if !outcomes[i].agrees() {
			wrong = append(wrong, fmt.Errorf("%s, %s: %+v; both sides must agree to within %.0f%%", s.backend(), s.front, outcomes[i], 100*most))
		}
	}
	return errors.Join(wrong...)
}

// long is how a run of "shield simulate --edge" goes, after half a minute in which an adaptive limit learns.
func (s service) long() course {
	return course{calm: 30 * time.Second, within: edge.Within, watch: edge.Watch(s.asked)}
}

// virtualEdge returns the edge in virtual time; 0 if the service comes back from all of the largest pushes.
func (s service) virtualEdge(ctx context.Context) (time.Duration, error) {
	for seed := range uint64(virtualLargest) {
		g, err := s.virtual(ctx, s.long(), largestPush, seed)
		if err != nil {
			return 0, err
		}
		if g < edge.Enough {
			return edgeOf(depth, time.Second, virtualPushes, func(p edge.Push, number int) (float64, error) {
				return s.virtual(ctx, short, p, uint64(number))
			})
		}
	}
	return 0, nil
}

// playLargest plays the largest push that --edge tries, and returns after how many of them the service was back.
func (l *laboratory) playLargest(s service) (back int, err error) {
	var all errgroup.Group
	var goodputs [largest]float64
	for i := range goodputs {
		all.Go(func() (err error) {
			goodputs[i], err = l.play(s, s.long(), largestPush, uint64(i))
			return err
		})
	}
	err = all.Wait()
	for _, g := range goodputs {
		if g >= edge.Enough {
			back++
		}
	}
	return back, err
}

func table(outcomes []outcome) [][]string {
	rows := [][]string{{"backend", "in front", "clients wait", "push", "virtual edge", "live edge", "live / virtual"}}
	seconds := func(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
	for i, s := range services {
		front, o := "`"+s.front+"`", outcomes[i]
		if s.front == "" {
			front = "nothing"
		}
		row := []string{s.backend(), front, s.timeout.String()}
		if o.virtual > 0 {
			row = append(row, fmt.Sprintf("%dx", depth), seconds(o.virtual), seconds(o.live), fmt.Sprintf("%.2f", o.ratio()))
		} else {
			row = append(row, largestPush.String(), "none", fmt.Sprintf("back from %d of %d", o.back, largest), "")
		}
		rows = append(rows, row)
	}
	return rows
}
