package clients

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/pushback"
)

const ms = time.Millisecond

// draws are random numbers at the ends of their range and between.
var draws = []float64{0, 0.25, 0.5, 0.75, math.Nextafter(1, 0)}

// waits are, for each attempt from the first, the least, the middle and the
// greatest wait of a client that is told nothing and fails with a 503. A single
// duration is all three. They end where the policy stops, or with "…" if it
// does not. The greatest draw is not the last below 1, with which a sum of
// floats may round up.
var waits = map[string]string{
	"exact":   "0s/500ms/1s 0s/1s/2s 0s/2s/4s 0s/4s/8s 0s/8s/16s 0s/16s/32s 0s/30s/60s …",
	"late":    "0s/500ms/1s 0s/1s/2s …",
	"ignore":  "0s/500ms/1s 0s/1s/2s 0s/2s/4s 0s/4s/8s 0s/8s/16s 0s/16s/32s 0s/30s/60s 0s/30s/60s …",
	"fixed":   "5s 5s …",
	"hammer":  "900ms/1s/1100ms 900ms/1s/1100ms …",
	"give-up": "",

	"google-sre":       "0s/500ms/1s 0s/1s/2s",
	"aws-exponential":  "1s 2s 4s 8s 16s 32s 60s …",
	"aws-full-jitter":  "0s/500ms/1s 0s/1s/2s 0s/2s/4s 0s/4s/8s 0s/8s/16s 0s/16s/32s 0s/30s/60s …",
	"aws-equal-jitter": "500ms/750ms/1s 1s/1500ms/2s 2s/3s/4s 4s/6s/8s 8s/12s/16s 16s/24s/32s 30s/45s/60s …",
	"aws-decorrelated": "1s/2s/3s …", // with last waits: TestDecorrelated

	"curl":             "1s 2s 4s",
	"urllib3":          "",
	"go-retryablehttp": "1s 2s 4s 8s",
	"client-go":        "",
	"aws-sdk-go":       "0s/1s/2s 0s/2s/4s",
	"stripe-go":        "500ms 750ms/875ms/1s",
	"openai":           "375ms/437500us/500ms 750ms/875ms/1s",
	"got":              "1s/1050ms/1100ms 2s/2050ms/2100ms",
	"ky":               "300ms 600ms",
	"undici":           "500ms 1s 2s 4s 8s",
	"grpc-go":          "80ms/100ms/120ms 160ms/200ms/240ms 320ms/400ms/480ms",
}

func TestCatalogWaits(t *testing.T) {
	for _, e := range Catalog() {
		table, ok := waits[e.Name]
		if !ok {
			t.Errorf("there is no table for %s", e.Name)
		}
		attempt := 0
		for row := range strings.FieldsSeq(table) {
			attempt++
			if row == "…" {
				break
			}
			want := strings.Split(row, "/")
			for i, u := range []float64{0, 0.5, 1 - 1e-10} {
				w, err := time.ParseDuration(want[min(i, len(want)-1)])
				if err != nil {
					t.Fatal(e.Name, err)
				}
				got, again := e.Policy.Next(Rejected{Attempt: attempt, U: u, Status: 503})
				if !again || (got-w).Abs() > time.Microsecond {
					t.Errorf("%s, attempt %d, draw %v: comes back %v after %v, want after %v", e.Name, attempt, u, again, got, w)
				}
			}
		}
		last := attempt + 1 // the one after which it stops
		if strings.HasSuffix(table, "…") {
			for _, attempt := range []int{attempt, 100, 10_000} {
				if _, again := e.Policy.Next(Rejected{Attempt: attempt}); !again {
					t.Errorf("%s stops after attempt %d, want never", e.Name, attempt)
				}
			}
			continue
		}
		for _, u := range draws {
			if wait, again := e.Policy.Next(Rejected{Attempt: last, U: u}); again {
				t.Errorf("%s comes back after attempt %d, in %v", e.Name, last, wait)
			}
		}
	}
}

func TestCatalogEntries(t *testing.T) {
	for _, e := range Catalog() {
		if e.Policy != e.Policy { // panics if the policy is not comparable
			t.Errorf("%s is not itself", e.Name)
		}
		if s := fmt.Sprint(e.Policy); len(s) < 2 || len(s) > 40 || strings.ContainsAny(s, "{}") {
			t.Errorf("%s is printed as %q", e.Name, s)
		}
	}
}

// failures are all ways to fail. The table lists those that a client retries without a
// hint, and those that it retries only with one.
var failures = []int{NoAnswer, NoConnection, 400, 403, 404, 408, 409, 413, 429, 500, 501, 502, 503, 504, 505, 521, 522, 524}

func TestRetriedStatuses(t *testing.T) {
	const all = "-1 -2 400 403 404 408 409 413 429 500 501 502 503 504 505 521 522 524"
	const server = "500 501 502 503 504 505 521 522 524"
	for name, want := range map[string][2]string{
		"exact":            {all, ""},
		"curl":             {"-1 408 429 500 502 503 504", ""},
		"urllib3":          {"-1 -2", "413 429 503"},
		"go-retryablehttp": {"-1 -2 429 500 502 503 504 505 521 522 524", ""},
		"client-go":        {"-2", "429 " + server},
		"aws-sdk-go":       {"-1 -2 500 502 503 504", ""},
		"stripe-go":        {"-1 -2 409 " + server, ""},
		"openai":           {"-1 -2 408 409 429 " + server, ""},
		"got":              {"-1 -2 408 429 500 502 503 504 521 522 524", "413"},
		"ky":               {"-2 408 429 500 502 503 504", "413"},
		"undici":           {"-2 429 500 502 503 504", ""},
		"grpc-go":          {"-2 502 503 504", ""},
	} {
		p := policy(t, name)
		var untold, told []string
		for _, status := range failures {
			_, again := p.Next(Rejected{Attempt: 1, Status: status})
			_, more := p.Next(Rejected{Attempt: 1, Status: status, Hint: pushback.Hint{Seconds: 2, Ms: 1500}})
			if again {
				untold = append(untold, fmt.Sprint(status))
			}
			if more && !again {
				told = append(told, fmt.Sprint(status))
			}
			if again && !more {
				t.Errorf("%s comes back after %d, but not if it is told when", name, status)
			}
		}
		if got := [2]string{strings.Join(untold, " "), strings.Join(told, " ")}; got != want {
			t.Errorf("%s comes back after\n%q, want\n%q", name, got, want)
		}
		zero, again := p.Next(Rejected{Attempt: 1})
		if full, same := p.Next(Rejected{Attempt: 1, Status: 503}); zero != full || again != same {
			t.Errorf("%s: a status that is not said is not taken for a 503", name)
		}
	}
}

// The waits of libraries after a 503 with a Retry-After of 6 s and 5250 ms, and after a
// longer one.
func TestHintsAreObeyed(t *testing.T) {
	six, long := pushback.Hint{Seconds: 6, Ms: 5250}, pushback.Hint{Seconds: 59, Ms: 59_000}
	const s = time.Second
	for name, want := range map[string][2]time.Duration{
		"exact":            {6 * s, 59 * s},
		"late":             {6 * s, 59 * s},
		"curl":             {6 * s, 59 * s},
		"urllib3":          {6 * s, 59 * s},
		"go-retryablehttp": {6 * s, 59 * s},
		"client-go":        {6 * s, 59 * s},
		"aws-sdk-go":       {0, 0},
		"stripe-go":        {s / 2, s / 2},
		"openai":           {5250 * ms, 59 * s},
		"got":              {6 * s, 59 * s},
		"ky":               {6 * s, 59 * s},
		"undici":           {6 * s, 30 * s},
		"grpc-go":          {5250 * ms, 59 * s},
	} {
		p := policy(t, name)
		for i, hint := range []pushback.Hint{six, long} {
			if got, again := p.Next(Rejected{Attempt: 1, Hint: hint}); !again || got != want[i] {
				t.Errorf("%s, told %+v: comes back %v after %v, want after %v", name, hint, again, got, want[i])
			}
			// 3.465735 ms is the median reaction.
			mid, _ := p.Next(Rejected{Attempt: 1, Hint: hint, U: 0.5})
			if _, own := p.(Named); own && want[i] >= 5*s && mid-want[i] != 3465735 {
				t.Errorf("%s, told %+v: waits %v in the middle", name, hint, mid)
			}
		}
	}
	// Its own backoff is longer.
	if got, _ := policy(t, "curl").Next(Rejected{Attempt: 3, Hint: pushback.Hint{Seconds: 1, Ms: 1000}}); got != 4*s {
		t.Errorf("curl, told 1 s after 3 attempts, waits %v, want its own 4s", got)
	}
	// Hints with statuses on which they are not read.
	if got, _ := policy(t, "ky").Next(Rejected{Attempt: 1, Status: 500, Hint: six}); got != 300*ms {
		t.Errorf("ky obeys a 500's Retry-After: %v", got)
	}
	if got, _ := policy(t, "go-retryablehttp").Next(Rejected{Attempt: 1, Status: 500, Hint: six}); got != s {
		t.Errorf("go-retryablehttp obeys a 500's Retry-After: %v", got)
	}
	for name, again := range map[string]bool{
		"openai": false, "stripe-go": false, "grpc-go": false, "exact": false,
		"urllib3": false, "client-go": false, "curl": true, "got": true, "aws-sdk-go": true,
	} {
		if _, got := policy(t, name).Next(Rejected{Attempt: 1, Hint: pushback.Hint{Never: true}}); got != again {
			t.Errorf("%s, told never to come back, does: %v, want %v", name, got, again)
		}
	}
}

// policy is the policy of the catalog that has the name.
func policy(t *testing.T, name string) Policy {
	t.Helper()
	p, err := Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	return p[0].Policy
}
