package cluster

import (
	"context"
	"errors"
	"net"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

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
