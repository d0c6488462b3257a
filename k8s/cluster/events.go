package cluster

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/herdshield/shield/k8s/model"
)

const (
	eventEvery   = 50 * time.Millisecond // at most; the recorder drops what it cannot keep
	eventTimeout = 10 * time.Second
	eventLength  = 1024 // bytes in the message of an Event
)

// Report says what is wrong now with objects. The leader tells their owners, by one
// Event of type Warning for each Problem that it has not told before; one that has
// changed is another one. After it has gone, it is told again if it comes back, and a
// new leader tells everything that it has not told itself. It returns at once, and only
// the latest call counts. The argument must not be modified after that.
//
// Events that are alike are aggregated, and there are not more than 25 about one object
// at once, and one in five minutes after that, as for all controllers. Namespaces take
// turns: nobody can keep back the Events of others, however fast his own problems
// change.
func (c *Cluster) Report(problems []model.Problem) {
	r := c.reporter
	r.mu.Lock()
	r.problems = problems
	r.mu.Unlock()
	signal(r.wake)
}

// A reporter makes Events of problems.
type reporter struct {
	cluster *Cluster
	wake    chan struct{}

	mu       sync.Mutex // guards problems
	problems []model.Problem
}

func newReporter(c *Cluster) *reporter { return &reporter{cluster: c, wake: make(chan struct{}, 1)} }

func (r *reporter) run(ctx context.Context) {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&eventSink{ctx, r.cluster.clients.events})
	config := r.cluster.config
	recorder := broadcaster.NewRecorder(scheme, corev1.EventSource{Component: config.Lease, Host: config.Pod})

	pace := time.NewTicker(eventEvery)
	defer pace.Stop()
	told := map[model.Problem]bool{} // those that are there now: it is no larger than the latest report
	turn := ""                       // the namespace that was told last
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		for _, problem := range inTurn(untold(told, r.latest()), turn) {
			if len(r.wake) > 0 || !r.cluster.Leading() {
				break // something newer; or it is for somebody else to tell
			}
			told[problem], turn = true, problem.Object.Namespace
			recorder.Event(reference(problem.Object), corev1.EventTypeWarning, problem.Reason, shorten(problem.Message))
			select {
			case <-ctx.Done():
				return
			case <-pace.C:
			}
		}
	}
}

func (r *reporter) latest() []model.Problem {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problems
}

// untold returns the problems that have not been told, each once, and forgets those
// told that are gone.
func untold(told map[model.Problem]bool, problems []model.Problem) (fresh []model.Problem) {
	there := make(map[model.Problem]bool, len(problems))
	for _, p := range problems {
		if !there[p] && !told[p] {
			fresh = append(fresh, p)
		}
		there[p] = true
	}
	maps.DeleteFunc(told, func(p model.Problem, _ bool) bool { return !there[p] })
	return fresh
}

// inTurn returns the problems in the order in which they are to be told: one of each
// namespace, those after last first, and then the next one of each. Within a namespace they
// keep their order.
func inTurn(problems []model.Problem, last string) []model.Problem {
	type place struct {
		round int // how many of its namespace come before it
		late  bool
		model.Problem
	}
	rounds := map[string]int{}
	places := make([]place, len(problems))
	for i, p := range problems {
		namespace := p.Object.Namespace
		places[i] = place{rounds[namespace], namespace <= last, p}
		rounds[namespace]++
	}
	slices.SortStableFunc(places, func(a, b place) int {
		switch {
		case a.round != b.round:
			return cmp.Compare(a.round, b.round)
		case a.late != b.late:
			if a.late {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.Object.Namespace, b.Object.Namespace)
	})
	ordered := make([]model.Problem, len(places))
	for i, p := range places {
		ordered[i] = p.Problem
	}
	return ordered
}

func reference(object model.Ref) *corev1.ObjectReference {
	version := corev1.SchemeGroupVersion
	if object.Kind == "Ingress" || object.Kind == "IngressClass" {
		version = networkingv1.SchemeGroupVersion
	}
	return &corev1.ObjectReference{
		APIVersion: version.String(), Kind: object.Kind,
		Namespace: object.Namespace, Name: object.Name, UID: types.UID(object.UID),
	}
}

// shorten cuts what is too long for an Event, between two characters.
func shorten(message string) string {
	message = strings.ToValidUTF8(message, "?")
	if len(message) <= eventLength {
		return message
	}
	end := eventLength - len("…")
	for !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + "…"
}

// An eventSink is a record.EventSink. Those that come with client-go know all kinds of
// objects there are, and make the program much larger.
type eventSink struct {
	ctx    context.Context // of Run: the interface has none
	client rest.Interface
}

// Create implements record.EventSink.
func (s *eventSink) Create(e *corev1.Event) (*corev1.Event, error) {
	return s.send(s.client.Post().Namespace(e.Namespace).Resource("events").Body(e))
}

// Update implements record.EventSink.
func (s *eventSink) Update(e *corev1.Event) (*corev1.Event, error) {
	return s.send(s.client.Put().Namespace(e.Namespace).Resource("events").Name(e.Name).Body(e))
}

// Patch implements record.EventSink.
func (s *eventSink) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	return s.send(s.client.Patch(types.StrategicMergePatchType).Namespace(e.Namespace).Resource("events").Name(e.Name).Body(patch))
}

func (s *eventSink) send(r *rest.Request) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(s.ctx, eventTimeout)
	defer cancel()
	e := new(corev1.Event)
	return e, r.Do(ctx).Into(e)
}
