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

// Report sets the current problems of all objects. The leader writes one Event of type Warning for each
// Problem that it has not written before; a changed Problem is a new one. A Problem that goes away and
// comes back is written again. A new leader writes every Problem that it has not written. Report returns
// at once, and only the latest call counts. The argument must not be modified after that.
//
// As for all controllers, similar Events are aggregated; an object gets at most 25 at once, and then one in
// five minutes. Namespaces take turns, so that fast-changing problems in one do not delay the Events of others.
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
	told := map[model.Problem]bool{} // of the latest report only
	turn := ""                       // the namespace of the last Event
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		for _, problem := range inTurn(untold(told, r.latest()), turn) {
			if len(r.wake) > 0 || !r.cluster.Leading() {
				break // there is a newer report, or another leader
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

// untold returns the problems without an Event, without duplicates, and forgets the told ones that are gone.
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

// inTurn returns the problems in the order of their Events: one of each namespace, beginning with the
// namespaces after last, then the next one of each. Within a namespace they keep their order.
func inTurn(problems []model.Problem, last string) []model.Problem {
	type turn struct {
		round     int // how many of its namespace come before it
		afterLast int // 1 for namespaces up to last, which come later
		model.Problem
	}
	rounds := map[string]int{}
	turns := make([]turn, len(problems))
	for i, p := range problems {
		namespace := p.Object.Namespace
		turns[i] = turn{round: rounds[namespace], Problem: p}
		if namespace <= last {
			turns[i].afterLast = 1
		}
		rounds[namespace]++
	}
	slices.SortStableFunc(turns, func(a, b turn) int {
		return cmp.Or(
			cmp.Compare(a.round, b.round),
			cmp.Compare(a.afterLast, b.afterLast),
			cmp.Compare(a.Object.Namespace, b.Object.Namespace),
		)
	})
	ordered := make([]model.Problem, len(turns))
	for i, t := range turns {
		ordered[i] = t.Problem
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

// shorten cuts a message to the length of an Event's, between two characters.
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

// An eventSink is a record.EventSink. Those of client-go know all kinds of objects, and make
// the program much larger.
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
