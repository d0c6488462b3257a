package live

import (
	"testing"
	"time"
)

func TestDecide(t *testing.T) {
	c := HerdConfig{RetryDelay: 500 * time.Millisecond, Attempts: 3, Patience: 10 * time.Second}
	for _, s := range []struct {
		name    string
		answer  answer
		n       int
		elapsed time.Duration
		verdict verdict
		wait    time.Duration
	}{
		{"a 2xx serves", answer{status: 200}, 1, 0, served, 0},
		{"on the last attempt, too", answer{status: 204}, 3, 0, served, 0},
		{"503 without a hint: the fixed delay", answer{status: 503}, 1, 0, retry, 500 * time.Millisecond},
		{"429 with a hint: the hint", answer{429, "7"}, 1, 0, retry, 7 * time.Second},
		{"503 with a hint: the hint", answer{503, "2"}, 2, 0, retry, 2 * time.Second},
		{"a hint of 0 is obeyed", answer{429, "0"}, 1, 0, retry, 0},
		{"500 cannot hint", answer{500, "7"}, 1, 0, retry, 500 * time.Millisecond},
		{"a date is not read", answer{503, "Wed, 21 Oct 2015 07:28:00 GMT"}, 1, 0, retry, 500 * time.Millisecond},
		{"nor a fraction", answer{503, "1.5"}, 1, 0, retry, 500 * time.Millisecond},
		{"nor a negative number", answer{503, "-1"}, 1, 0, retry, 500 * time.Millisecond},
		{"nor a number that overflows", answer{503, "99999999999"}, 1, 0, retry, 500 * time.Millisecond},
		{"no answer in time", answer{status: timedOut}, 1, time.Second, retry, 500 * time.Millisecond},
		{"no connection", answer{status: unreachable}, 2, 0, retry, 500 * time.Millisecond},
		{"the last attempt fails", answer{status: timedOut}, 3, 0, gaveUp, 0},
		{"even with a hint", answer{429, "1"}, 3, 0, gaveUp, 0},
		{"just within patience", answer{429, "4"}, 1, 6 * time.Second, retry, 4 * time.Second},
		{"beyond patience", answer{429, "4"}, 1, 6*time.Second + 1, gaveUp, 0},
		{"the largest hint", answer{429, "2147483647"}, 1, 0, gaveUp, 0},
		{"what is wrong stays wrong", answer{status: 404}, 1, 0, gaveUp, 0},
		{"a redirect is no success", answer{status: 302}, 1, 0, gaveUp, 0},
	} {
		t.Run(s.name, func(t *testing.T) {
			v, wait := c.decide(s.answer, s.n, s.elapsed)
			if v != s.verdict || wait != s.wait {
				t.Errorf("decide(%+v, %d, %v) = %v, %v; want %v, %v", s.answer, s.n, s.elapsed, v, wait, s.verdict, s.wait)
			}
		})
	}
}

// FuzzDecide holds decide to its doc comment for any answer.
func FuzzDecide(f *testing.F) {
	f.Add(429, "30", 1, int64(time.Second))
	f.Add(503, "-1", 5, int64(0))
	f.Add(timedOut, "", 12, int64(time.Hour))
	f.Fuzz(func(t *testing.T, status int, field string, n int, elapsedNS int64) {
		c := HerdConfig{RetryDelay: time.Second, Attempts: 12, Patience: time.Minute}
		elapsed := time.Duration(max(elapsedNS, 0))
		v, wait := c.decide(answer{status, field}, n, elapsed)
		switch {
		case v == served && (status < 200 || status > 299):
			t.Errorf("status %d serves", status)
		case v == retry && n >= c.Attempts:
			t.Errorf("attempt %d is followed by another; want at most %d", n, c.Attempts)
		case v == retry && (wait < 0 || elapsed+wait > c.Patience):
			t.Errorf("next attempt after %v + %v; want at most %v", elapsed, wait, c.Patience)
		case v != retry && wait != 0:
			t.Errorf("%v, and yet a wait of %v", v, wait)
		}
	})
}
