// Command edge checks "shield simulate --edge" against processes on this machine. It plays pushes of one depth, a
// backend that is four times as slow, in virtual time and live, and compares the lengths from which half of the runs
// come back:
//
//	go -C loadtest/lab run ./edge             # prints the table, in some 20 minutes
//	go -C loadtest/lab run ./edge ../../docs  # fills it into laboratory.md, too
//	go -C loadtest/lab run ./edge -virtual    # the virtual half of it, in seconds
//
// Live, the backend is a process whose work is to sleep, behind shield's own program or nothing, and clients connect
// over loopback. Both sides have the same config as text, policies, time-outs, rates and criterion, which is edge.Goodput.
// The two sides share no arrivals: they agree as two seeds of one side do. Live, a request also takes the time of
// sockets, of Caddy and of late timers, and there are two processors for all.
//
// Where the virtual answer is that the service comes back from every push, the largest is played live, three times.
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

const (
	ms = time.Millisecond

	// depth is that of the pushes whose length is looked for. Ours: requests that are in work when a push ends take long
	// after a deeper one, and that is left to chance.
	depth = 4

	// most is by how much the live edge may differ from the virtual one.
	most = .2

	// pushes of each of the two series: so the edge has a standard deviation of some 5 % live, and 2 % in virtual time.
	pushes, virtualPushes = 24, 150

	// largest pushes of each service that comes back from most of them.
	largest, virtualLargest = 3, 20
)

// largestPush is the largest that --edge tries.
var largestPush = edge.Push{Depth: edge.Deepest, Length: edge.Longest}

// short is how the edge's runs go. A service that is not back after ten time-outs of a second does not come back
// in a minute, either: the virtual edges are the same.
var short = course{calm: 3 * time.Second, within: 10 * time.Second, watch: 10 * time.Second}

// services are those of the table, at 75 or 80 % of what their backends serve.
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
	onlyVirtual := flag.Bool("virtual", false, "play nothing live")
	together := flag.Int("together", 6, "how many runs are live at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *onlyVirtual, *together, flag.Arg(0)); err != nil {
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
		fmt.Fprintf(l.progress, "%s, %q, %v: %.3f %v\n", s.backend(), s.front, p, g, err)
		l.mu.Unlock()
		if !errors.Is(err, errBusy) {
			break
		}
	}
	return g, err
}

// An outcome is a line of the table.
type outcome struct {
	virtual, live         time.Duration // the edges; 0: none
	virtualBack, liveBack int           // from how many of the largest pushes it comes back
}

func (o outcome) agrees() bool {
	if o.virtual == 0 {
		return 2*o.liveBack > largest
	}
	return math.Abs(o.ratio()-1) <= most
}

func (o outcome) ratio() float64 { return float64(o.live) / float64(o.virtual) }

// run plays all services, prints the table, and fills it into the page of the folder, if there is one.
func run(ctx context.Context, out io.Writer, onlyVirtual bool, together int, folder string) error {
	outcomes := make([]outcome, len(services))
	for i, s := range services {
		var err error
		if outcomes[i].virtual, outcomes[i].virtualBack, err = s.virtualEdge(ctx); err != nil {
			return fmt.Errorf("%s, %s: %w", s.backend(), s.front, err)
		}
		fmt.Fprintf(os.Stderr, "%s, %q: virtual: %+v\n", s.backend(), s.front, outcomes[i])
	}
	if onlyVirtual {
		return nil
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
			o.liveBack, err = l.playLargest(s)
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
		if err := page.Fill(folder, "laboratory.md", "go -C loadtest/lab run ./edge ../../docs", page.Table{Name: "edge", Text: page.Markdown(rows, 3)}); err != nil {
			return err
		}
	}
	var wrong []error
	for i, s := range services {
		if !outcomes[i].agrees() {
			wrong = append(wrong, fmt.Errorf("%s, %s: %+v; want that both sides agree, to within %.0f %%", s.backend(), s.front, outcomes[i], 100*most))
		}
	}
	return errors.Join(wrong...)
}

// long is how a run of "shield simulate --edge" goes, after half a minute in which an adaptive limit learns.
func (s service) long() course {
	return course{calm: 30 * time.Second, within: edge.Within, watch: edge.Watch(s.asked)}
}

// virtualEdge returns the edge in virtual time, or 0 and from how many of the largest pushes the service comes back, if
// these are most.
func (s service) virtualEdge(ctx context.Context) (length time.Duration, back int, err error) {
	for seed := uint64(0); seed < virtualLargest && 2*(int(seed)-back) < virtualLargest; seed++ { // until half are lost
		g, err := s.virtual(ctx, s.long(), largestPush, seed)
		if err != nil {
			return 0, 0, err
		}
		if g >= edge.Enough {
			back++
		}
	}
	if 2*back > virtualLargest {
		return 0, back, nil
	}
	length, err = edgeOf(depth, time.Second, virtualPushes, func(p edge.Push, number int) (float64, error) {
		return s.virtual(ctx, short, p, uint64(number))
	})
	return length, back, err
}

// playLargest plays the largest push that --edge tries, and returns after how many of them the service was back.
func (l *laboratory) playLargest(s service) (back int, err error) {
	for seed := range uint64(largest) {
		g, err := l.play(s, s.long(), largestPush, seed)
		if err != nil {
			return back, err
		}
		if g >= edge.Enough {
			back++
		}
	}
	return back, nil
}

func table(outcomes []outcome) [][]string {
	rows := [][]string{{"backend", "in front", "push", "virtual edge", "live edge", "live / virtual"}}
	seconds := func(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
	for i, s := range services {
		front, o := "`"+s.front+"`", outcomes[i]
		if s.front == "" {
			front = "nothing"
		}
		row := []string{s.backend(), front}
		if o.virtual > 0 {
			row = append(row, fmt.Sprintf("%dx", depth), seconds(o.virtual), seconds(o.live), fmt.Sprintf("%.2f", o.ratio()))
		} else {
			row = append(row, largestPush.String(), fmt.Sprintf("none: back from %d of %d", o.virtualBack, virtualLargest),
				fmt.Sprintf("none: back from %d of %d", o.liveBack, largest), "")
		}
		rows = append(rows, row)
	}
	return rows
}
