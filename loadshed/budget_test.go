package loadshed

import (
	"math"
	"testing"
	"time"
)

// play has first attempts and retries come at these rates per second, and returns
// how many retries per second are let in after half a minute.
func play(b *budget, from time.Duration, seconds, first, retries int, capacity float64) float64 {
	admitted := 0
	for s := range seconds {
		for i := range 1000 {
			now := from + time.Duration(s)*time.Second + time.Duration(i)*ms
			for range (i+1)*first/1000 - i*first/1000 {
				b.first.Add(1)
			}
			for range (i+1)*retries/1000 - i*retries/1000 {
				if b.Take(now, capacity) && s >= seconds/2 {
					admitted++
				}
			}
		}
	}
	return float64(admitted) / float64(seconds-seconds/2)
}

// Retries get what first attempts leave: in the example of HotOS '21, 20 per second
// of 300 with 280.
func TestBudgetIsWhatFirstAttemptsLeave(t *testing.T) {
	for _, c := range []struct {
		first, retries int
		capacity       float64
		least, most    float64
	}{
		{280, 600, 300, 18, 22},
		{280, 10, 300, 10, 10},
		{280, 600, 200, 1, 1}, // never none
		{0, 600, 300, 295, 300},
		{280, 600, math.Inf(1), 600, 600},
		{10, 2000, 1000, 985, 995},
	} {
		var b budget
		if got := play(&b, time.Hour, 60, c.first, c.retries, c.capacity); got < c.least || got > c.most {
			t.Errorf("%+v: %v retries per second", c, got)
		}
	}
}

// In the first second nothing is known of first attempts, and after a change they
// are known within some ten seconds.
func TestBudgetFollows(t *testing.T) {
	var b budget
	play(&b, time.Hour, 30, 50, 600, 300)
	if got := play(&b, time.Hour+30*time.Second, 40, 290, 600, 300); got > 30 {
		t.Errorf("%v retries per second, 20 to 40 s after first attempts have risen to 290 of 300", got)
	}
}
