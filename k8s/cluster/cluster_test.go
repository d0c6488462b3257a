package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/testbed/must"
)

// TestContact: an outage of the API server is logged once, and its end once, whatever the
// number of tries. At the start it is logged at once.
func TestContact(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	c := &contact{log: zap.New(core)}
	client := logger(c.log, c.down)
	rejected := errors.New("connection refused")
	for i, step := range []struct {
		at     time.Duration // seconds
		do     string
		logged string
	}{
		{1, "fails", "does not answer"}, {2, "fails", ""}, {100, "fails", ""}, {100, "client", ""}, {102, "answers", "answers again"}, {103, "answers", ""},
		{103, "client", "Failed to watch"}, {110, "fails", ""}, {110, "answers", ""}, // a connection broke
		{112, "fails", ""}, {116, "fails", ""}, {117, "fails", "does not answer"}, {118, "fails", ""}, {120, "answers", "answers again"},
	} {
		switch now := step.at * time.Second; step.do {
		case "fails":
			c.failed(now, rejected)
		case "answers":
			c.answered(now, now+time.Second)
		case "client":
			client.Error(rejected, "Failed to watch")
		}
		got := logs.TakeAll()
		if len(got) > 1 || (len(got) == 1) != (step.logged != "") || len(got) == 1 && !strings.Contains(got[0].Message, step.logged) {
			t.Errorf("step %d, %+v: logged %v", i, step, got)
		}
	}
	if got, want := time.Duration(c.last.Load()), 120*time.Second; got != want {
		t.Errorf("the last contact was at %v, want %v", got, want)
	}
}

// An API server that is away is retried about every 2 s, however long it is away; one that
// answers is not asked twice.
func TestInsist(t *testing.T) {
	away := &url.Error{Op: "Get", Err: &net.OpError{Op: "dial", Err: errors.New("connection refused")}}
	synctest.Test(t, func(t *testing.T) {
		began, times := time.Now(), 0
		err := insist(t.Context(), func() error {
			times++
			switch since := time.Since(began); {
			case since < time.Minute:
				return away
			case since < 2*time.Minute:
				return apierrors.NewServiceUnavailable("it starts")
			}
			return nil
		})
		late := time.Since(began) - 2*time.Minute
		if err != nil || late > 2*maxRetryWait || times < 40 || times > 150 {
			t.Errorf("asked %d times, %v late: %v", times, late, err)
		}
		for _, answer := range []error{nil, apierrors.NewResourceExpired("too old"), apierrors.NewUnauthorized("who?"), errors.New("cannot be decoded")} {
			times := 0
			if err := insist(t.Context(), func() error { times++; return answer }); err != answer || times != 1 {
				t.Errorf("asked %d times: got %v, want %v", times, err, answer)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := insist(ctx, func() error { return away }); err != away {
			t.Errorf("at the end got %v", err)
		}
	})
}

// TestInTurn: a namespace whose Problem changes as fast as Events are made gets every second
// Event, wherever it is in the alphabet, and all others get theirs, too.
func TestInTurn(t *testing.T) {
	problem := func(namespace, message string) model.Problem {
		return model.Problem{Object: model.Ref{Namespace: namespace, Name: "in"}, Message: message}
	}
	for _, evil := range []string{"a-evil", "m-evil", "z-evil"} {
		told, turn, quiet := map[model.Problem]bool{}, "", 0
		for i := range 20 {
			problems := []model.Problem{problem(evil, strings.Repeat("x", i))} // another one each time
			for _, namespace := range strings.Split("b c d e f g h i j", " ") {
				problems = append(problems, problem(namespace, ""))
			}
			slices.SortFunc(problems, func(a, b model.Problem) int { return strings.Compare(a.Object.Namespace, b.Object.Namespace) })
			next := inTurn(untold(told, problems), turn)[0]
			told[next], turn = true, next.Object.Namespace
			if turn != evil {
				quiet++
			}
		}
		if quiet != 9 {
			t.Errorf("%s: %d of 9 others are told after 20 Events", evil, quiet)
		}
	}
}

// A desk stands for an API server with one Lease.
type desk struct {
	mu      sync.Mutex // guards everything, the windows included
	lease   *coordinationv1.Lease
	version int
}

func (d *desk) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

func (d *desk) spec() coordinationv1.LeaseSpec {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lease.Spec
}

// A window is one candidate's connection to the desk.
type window struct {
	*desk
	down  bool          // requests hang until they time out
	delay time.Duration // before a request arrives
}

var leaseResource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

func (w *window) travel(ctx context.Context) error {
	w.mu.Lock()
	delay, down := w.delay, w.down
	w.mu.Unlock()
	time.Sleep(delay)
	if down {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (w *window) get(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	if err := w.travel(ctx); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lease == nil {
		return nil, apierrors.NewNotFound(leaseResource, name)
	}
	return w.lease.DeepCopy(), nil
}

func (w *window) write(ctx context.Context, name string, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if err := w.travel(ctx); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.lease == nil && lease.ResourceVersion != "":
		return nil, apierrors.NewNotFound(leaseResource, name)
	case w.lease != nil && lease.ResourceVersion == "":
		return nil, apierrors.NewAlreadyExists(leaseResource, name)
	case w.lease != nil && w.lease.ResourceVersion != lease.ResourceVersion:
		return nil, apierrors.NewConflict(leaseResource, name, errors.New("it has changed"))
	}
	w.version++
	w.desk.lease = lease.DeepCopy()
	w.desk.lease.ResourceVersion = fmt.Sprint(w.version)
	return w.lease.DeepCopy(), nil
}

// A replica of a story: an election that runs until it is ended.
type replica struct {
	*election
	*window
	end     func()
	elected atomic.Int32 // times
}

func (d *desk) replica(id string) *replica {
	r := &replica{window: &window{desk: d}}
	r.election = newElection(Config{Lease: "shield", Identity: id}, r.window, zap.NewNop(), func() { r.elected.Add(1) })
	ctx, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.run(ctx)
	}()
	r.end = func() {
		end()
		<-done
	}
	return r
}

// after waits for d and returns the replica that leads all the time; "-" if none does, or
// if it changes. It fails if two lead at once.
func after(t *testing.T, d time.Duration, replicas ...*replica) string {
	t.Helper()
	leader := ""
	for begin := time.Now(); time.Since(begin) < d; time.Sleep(max(10*time.Millisecond, d/1000)) {
		synctest.Wait()
		now := "-"
		for _, r := range replicas {
			if !r.leading() {
				continue
			}
			if now != "-" {
				t.Fatalf("%s and %s both lead", now, r.candidate.id)
			}
			now = r.candidate.id
		}
		if leader == "" {
			leader = now
		} else if leader != now {
			leader = "-"
		}
	}
	return leader
}

// leads checks who leads for d; "-": none does.
func leads(t *testing.T, want string, d time.Duration, replicas ...*replica) {
	t.Helper()
	if got := after(t, d, replicas...); got != want {
		t.Errorf("leader is %s, want %s", got, want)
	}
}

// until returns how long it takes until r leads.
func until(t *testing.T, r *replica, others ...*replica) time.Duration {
	t.Helper()
	for begin := time.Now(); ; {
		if after(t, 10*time.Millisecond, append(others, r)...) == r.candidate.id {
			return time.Since(begin).Round(10 * time.Millisecond)
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("%s does not become the leader", r.candidate.id)
		}
	}
}

func TestElection(t *testing.T) {
	within := func(t *testing.T, what string, took, least, most time.Duration) {
		t.Helper()
		if took < least || took > most {
			t.Errorf("%s: %v; want from %v to %v", what, took, least, most)
		}
	}
	stories := map[string]func(*testing.T, *desk, *replica, *replica){
		"one of two leads and goes on": func(t *testing.T, d *desk, a, b *replica) {
			leads(t, "a", time.Hour, a, b)
			if a.elected.Load() != 1 || b.elected.Load() != 0 {
				t.Errorf("elected %d and %d times", a.elected.Load(), b.elected.Load())
			}
			if s := d.spec(); *s.LeaseTransitions != 0 || *s.HolderIdentity != "a" || *s.LeaseDurationSeconds != 15 || !s.RenewTime.After(s.AcquireTime.Time) {
				t.Errorf("the Lease is %v", s)
			}
		},
		"the leader dies": func(t *testing.T, d *desk, a, b *replica) {
			a.end()
			within(t, "takeover", until(t, b), leaseDuration-2*retryPeriod, leaseDuration+retryPeriod+retryPeriod/2)
			if s := d.spec(); *s.LeaseTransitions != 1 {
				t.Errorf("the Lease is %v", s)
			}
		},
		"the leader resigns": func(t *testing.T, d *desk, a, b *replica) {
			must.Do(t, a.resign(t.Context()))
			if s := d.spec(); a.leading() || *s.HolderIdentity != "" {
				t.Errorf("it leads: %v, and the Lease is %v", a.leading(), s)
			}
			within(t, "takeover", until(t, b, a), 0, retryPeriod+retryPeriod/5)
			leads(t, "b", time.Minute, a, b)
		},
		"the leader is cut off": func(t *testing.T, d *desk, a, b *replica) {
			d.set(func() { a.down = true })
			within(t, "takeover", until(t, b, a), leaseDuration-2*retryPeriod, leaseDuration+retryPeriod+retryPeriod/2)
			d.set(func() { a.down = false })
			leads(t, "b", time.Minute, a, b)
		},
		"both are cut off for long": func(t *testing.T, d *desk, a, b *replica) {
			d.set(func() { a.down, b.down = true, true })
			after(t, renewDeadline, a, b)
			leads(t, "-", time.Minute, a, b)
			d.set(func() { a.down, b.down = false, false })
			after(t, 15*time.Second, a, b)
			if !a.leading() && !b.leading() {
				t.Error("there is no leader again")
			}
		},
		"a short outage": func(t *testing.T, d *desk, a, b *replica) {
			d.set(func() { a.down, b.down = true, true })
			after(t, 4*time.Second, a, b)
			d.set(func() { a.down, b.down = false, false })
			if got := after(t, time.Minute, a, b); got != "a" || a.elected.Load() != 1 {
				t.Errorf("leader is %s, elected %d times; want a, once", got, a.elected.Load())
			}
		},
		"leadership lapses for a moment": func(t *testing.T, d *desk, a, b *replica) {
			b.end()
			for last := d.spec().RenewTime; d.spec().RenewTime == last; {
				after(t, 10*time.Millisecond, a)
			}
			d.set(func() { a.down = true }) // the next request takes 5 s and fails
			after(t, 7500*time.Millisecond, a)
			d.set(func() { a.down, a.delay = false, 3*time.Second }) // the one after that succeeds when it is too late
			leads(t, "-", 6*time.Second, a)                          // for a moment
			if !a.leading() || a.elected.Load() != 2 {
				t.Errorf("leads: %v, elected %d times; want twice, so that what was left undone is done", a.leading(), a.elected.Load())
			}
		},
		"the Lease is deleted": func(t *testing.T, d *desk, a, b *replica) {
			d.set(func() { d.lease = nil })
			after(t, 5*time.Second, a) // b may get it; a notices when it renews
			after(t, 10*time.Second, a, b)
			if !a.leading() && !b.leading() {
				t.Error("there is no leader")
			}
		},
	}
	for name, story := range stories {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := new(desk)
				a := d.replica("a")
				if until(t, a) > time.Second {
					t.Error("the first has to wait")
				}
				b := d.replica("b")
				after(t, 5*time.Second, a, b)
				story(t, d, a, b)
				a.end()
				b.end()
			})
		})
	}
}
