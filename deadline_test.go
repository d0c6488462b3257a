package shield

import (
	"context"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

func TestDeadline(t *testing.T) {
	for _, c := range []struct {
		headers []string
		want    time.Duration
	}{
		{nil, 0},
		{[]string{"grpc-timeout", "250m"}, 250 * ms},
		{[]string{"grpc-timeout", "2S"}, 2 * time.Second},
		{[]string{"grpc-timeout", "99999999H"}, 1 << 62 / time.Hour * time.Hour},
		{[]string{"grpc-timeout", "1u"}, time.Microsecond},
		{[]string{"grpc-timeout", "7n"}, 7},
		{[]string{"grpc-timeout", "3M"}, 3 * time.Minute},
		{[]string{"grpc-timeout", "100000000m"}, 0}, // nine digits
		{[]string{"grpc-timeout", "-1S"}, 0},
		{[]string{"grpc-timeout", "1s"}, 0},
		{[]string{"grpc-timeout", "S"}, 0},
		{[]string{"x-envoy-expected-rq-timeout-ms", "1500"}, 1500 * ms},
		{[]string{"x-envoy-expected-rq-timeout-ms", "1.5"}, 0},
		{[]string{"x-request-timeout", "2.5"}, 2500 * ms},
		{[]string{"x-request-timeout", "300ms"}, 300 * ms},
		{[]string{"x-request-timeout", "0"}, 0},
		{[]string{"x-request-timeout", "-3"}, 0},
		{[]string{"x-request-timeout", "NaN"}, 0},
		{[]string{"x-request-timeout", "1e300"}, 0},
		{[]string{"x-request-timeout", "soon"}, 0},
		{[]string{"x-request-timeout", "2", "grpc-timeout", "1S"}, time.Second},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		for i := 0; i < len(c.headers); i += 2 {
			r.Header.Set(c.headers[i], c.headers[i+1])
		}
		want := c.want
		if want > 0 {
			want += min(time.Hour, 1<<63-1-want)
		}
		if got := Deadline(r, time.Hour); got != want {
			t.Errorf("%v: %v, want %v", c.headers, got, want)
		}
	}
}

func TestDeadlineOfTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inBubble(t)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
		r.Header.Set("Grpc-Timeout", "4S")
		time.Sleep(time.Second)
		now := Now()
		if got := Deadline(r, now) - now; got != 2*time.Second {
			t.Errorf("%v, want the 2s that are left", got)
		}
		time.Sleep(time.Minute)
		now = Now()
		if got := Deadline(r, now) - now; got != 1 {
			t.Errorf("%v, want as good as nothing", got)
		}
	})
}

// The time of day of any instant is by the clock as it shows now, and not by what it showed when the process began.
func TestTimeOfDayFollowsTheClock(t *testing.T) {
	was := clock
	defer func() { clock = was }()
	for _, by := range []time.Duration{time.Hour, -time.Hour, 0} {
		clock = func() time.Time { return was().Round(0).Add(by) }
		for _, ahead := range []time.Duration{0, time.Minute, -time.Minute} {
			if off := At(Now() + ahead).Sub(time.Now().Round(0).Add(by + ahead)).Abs(); off > time.Second {
				t.Errorf("after a step by %v, %v from now is off by %v", by, ahead, off)
			}
		}
	}
}
