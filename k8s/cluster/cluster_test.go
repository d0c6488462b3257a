package cluster

import (
	"context"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/herdshield/shield/k8s/model"
)

// TestContact: an outage of the API server is logged once, and its end once, whatever the
// number of tries. At the start it is logged at once.
func TestContact(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	c := &contact{log: zap.New(core)}
	client := logger(c.log, c.down)
	rejected := errors.New("connection refused")
	logged := func(want ...string) {
		t.Helper()
		var got []string
		for _, e := range logs.TakeAll() {
			got = append(got, e.Message)
		}
		if len(got) != len(want) {
			t.Fatalf("logged %q, want %q", got, want)
		}
		for i := range want {
			if !strings.Contains(got[i], want[i]) {
				t.Errorf("logged %q, want %q", got[i], want[i])
			}
		}
	}
	second := time.Second
	c.failed(1*second, rejected)
	logged("does not answer")
	for i := range 100 {
		c.failed(time.Duration(2+i)*second, rejected)
		client.Error(rejected, "Failed to watch")
	}
	logged()
	c.answered(102*second, 103*second)
	c.answered(103*second, 104*second)
	client.Error(rejected, "Failed to watch")
	logged("answers again", "Failed to watch")

	c.failed(110*second, rejected) // a connection broke
	c.answered(110*second, 111*second)
	c.failed(112*second, rejected)
	c.failed(116*second, rejected)
	logged()
	c.failed(117*second, rejected)
	c.failed(118*second, rejected)
	logged("does not answer")
	c.answered(120*second, 121*second)
	if got, want := time.Duration(c.last.Load()), 120*second; got != want {
		t.Errorf("the last contact was at %v, want %v", got, want)
	}
	logged("answers again")
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
