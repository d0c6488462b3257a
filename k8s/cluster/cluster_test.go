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
