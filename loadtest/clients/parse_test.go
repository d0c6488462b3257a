package clients

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/pushback"
)

func TestParse(t *testing.T) {
	s := time.Second
	for text, want := range map[string]Population{
		"exact":               {{Weight: 1, Policy: Exact{}}},
		" exact:1 , ignore:2": {{Weight: 1, Policy: Exact{}}, {Weight: 2, Policy: Ignore{}}},
		"curl:70,aws-full-jitter:20,fixed@2.5s*4:10": {
			{Weight: 70, Policy: policy(t, "curl")},
			{Weight: 20, Policy: Named{"aws-full-jitter", FullJitter(s, 60*s)}},
			{Weight: 10, Policy: MaxAttempts{4, Fixed{2500 * ms}}},
		},
		"hammer@100ms":    {{Weight: 1, Policy: Hammer{100 * ms}}},
		"fixed":           {{Weight: 1, Policy: Fixed{5 * s}}},
		"fixed@0s":        {{Weight: 1, Policy: Fixed{}}},
		"late*9:0.5":      {{Weight: 0.5, Policy: MaxAttempts{9, Late{0.2}}}},
		"grpc-go":         {{Weight: 1, Policy: policy(t, "grpc-go"), Precise: true, SaysRetry: true, SaysTimeout: true}},
		"exact*4,exact*4": {{Weight: 1, Policy: MaxAttempts{4, Exact{}}}, {Weight: 1, Policy: MaxAttempts{4, Exact{}}}},
	} {
		got, err := Parse(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if len(got) != len(want) {
			t.Errorf("%q: %v, want %v", text, got, want)
			continue
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("%q: share %d is %+v, want %+v", text, i, got[i], want[i])
			}
		}
	}
}

func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "the mix is empty; use NAME",
		" ":                                     "the mix is empty",
		"curl,,exact":                           "a part of the mix is empty",
		"crul":                                  `"crul" is unknown; use one of: exact, late,`,
		"exact@5s":                              `"exact@5s": exact doesn't take a gap; remove the @ after it`,
		"fixed@5":                               `the gap is "5"; use a duration like 1.5s, 0s to 24h0m0s`,
		"fixed@-5s":                             "use a duration",
		"fixed@25h":                             "use a duration",
		"hammer@":                               `the gap is ""`,
		"exact*0":                               `"exact*0": the attempts are "0"; use a whole number, 1 to 1000`,
		"exact*":                                "the attempts are",
		"exact*1001":                            "the attempts are",
		"exact:0":                               `"exact:0": the weight is "0"; use a number above 0, at most 1000000000`,
		"curl:70,exact,ignore":                  `"exact", "ignore": the weight is missing, but other policies have one; give all of them a weight, or none`,
		"exact:":                                "the weight is",
		"exact:NaN":                             "the weight is",
		"exact:Inf":                             "the weight is",
		"exact:1:2":                             `the weight is "1:2"`,
		"exact:2*4":                             `the weight is "2*4"`,
		"crul:0,exact*0,ky":                     "the attempts are", // the second of two errors
		strings.Repeat("exact,", 256) + "exact": "the mix has 257 parts; use at most 256",
		strings.Repeat("x", maxMix+1):           "the mix has 10001 bytes; use at most 10000",
	} {
		p, err := Parse(text)
		if err == nil || p != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, error %v; want %q in it", text, p, err, want)
		}
	}
}

// anything returns a random state of a client, the impossible included.
func anything(draw *rand.Rand) Rejected {
	r := Rejected{
		Attempt: 1 + draw.IntN(30),
		U:       draw.Float64(),
		Status:  failures[draw.IntN(len(failures))],
		Elapsed: time.Duration(draw.Int64N(int64(time.Hour))),
		Gap:     time.Duration(draw.Int64N(int64(time.Minute))),
	}
	if draw.IntN(4) == 0 {
		r.Attempt = []int{0, -1, 31, 61, 62, 63, 64, 1000, 1 << 30, math.MaxInt}[draw.IntN(10)]
	}
	if draw.IntN(4) == 0 {
		r.Elapsed = []time.Duration{0, -1, longest, math.MaxInt64}[draw.IntN(4)]
		r.Gap = []time.Duration{0, -1, longest, math.MaxInt64}[draw.IntN(4)]
	}
	if draw.IntN(4) == 0 {
		r.U = []float64{0, math.SmallestNonzeroFloat64, 0.5, math.Nextafter(1, 0)}[draw.IntN(4)]
	}
	switch draw.IntN(4) {
	case 0:
		s := 1 + draw.IntN(59)
		r.Hint = pushback.Hint{Seconds: s, Ms: s*1000 - draw.IntN(1000)}
	case 1:
		r.Hint = pushback.Hint{Never: true}
	}
	if draw.IntN(2) == 0 {
		r.Requests = 1 + draw.Int64N(1<<40)
		r.Retries = draw.Int64N(r.Requests)
	}
	return r
}

// Of any mix, no wait is negative, overflows or is longer than a year, and the same is
// answered to the same.
func FuzzParse(f *testing.F) {
	for _, e := range Catalog() {
		f.Add(e.Name, uint64(1))
	}
	f.Add("curl:70,aws-full-jitter:20,fixed@5s*4:10", uint64(2))
	f.Add("late,try-n-times,hammer@1us*1000:1e9", uint64(3))
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		p, err := Parse(text)
		if err != nil {
			if p != nil || err.Error() == "" {
				t.Errorf("%q: %v with %v", text, p, err)
			}
			return
		}
		if len(p) > MaxShares {
			t.Errorf("%.60q has %d shares", text, len(p))
		}
		draw := rand.New(rand.NewPCG(seed, seed))
		for _, s := range p {
			if !(s.Weight > 0 && s.Weight <= maxWeight) {
				t.Errorf("%q has the weight %v", text, s.Weight)
			}
			for range 1000 / len(p) {
				r := anything(draw)
				wait, again := s.Policy.Next(r)
				if wait < 0 || wait > longest || !again && wait != 0 {
					t.Errorf("%v, %+v: comes back %v after %v", s.Policy, r, again, wait)
				}
				if w, a := s.Policy.Next(r); w != wait || a != again {
					t.Fatalf("%v is not pure: %+v gives %v, %v and %v, %v", s.Policy, r, wait, again, w, a)
				}
			}
		}
		for _, u := range []float64{draw.Float64(), math.Nextafter(1, 0)} {
			if i := p.Pick(u); i < 0 || i >= len(p) {
				t.Errorf("%q: picks share %d", text, i)
			}
		}
	})
}
