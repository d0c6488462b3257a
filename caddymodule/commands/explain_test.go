package commands

import (
	"strings"
	"testing"

	"github.com/herdshield/shield/caddymodule/adminapi"
)

func TestExplanationText(t *testing.T) {
	e := adminapi.ExplanationStatus{
		Name: "api", Would: "refuse", Reason: "early", Status: 503, RetryAfter: 4, Class: "default", Standing: "early",
		Promises: 2, Promise: new(3.4), Kind: "hammer",
		Zones:   []adminapi.ZoneExplanation{{Name: "z", Shared: true, Matches: true, BucketExplanation: adminapi.BucketExplanation{Tokens: 3, Burst: 4}}},
		Unknown: map[string]string{"by_key": "{http.request.header.X-Key}"},
	}
	var text strings.Builder
	printExplanation(&text, "a\x1b[31m", &e)
	if want := `api: a request of "a\x1b[31m" now would be refused with 503 and Retry-After 4: early.
  zone         z: 3 of 4 tokens left; the store may have more; it counts only requests that it matches
  appointment  due in 3.4 s, the first of 2; its retries: hammer
  class        default
  unknown      by_key: its key is {http.request.header.X-Key}, which "a\x1b[31m" does not tell
`; text.String() != want {
		t.Errorf("the text is\n%swant\n%s", text.String(), want)
	}
	for want, e := range map[string]adminapi.ExplanationStatus{
		"would wait in the queue": {Would: "queue"},
		"would be admitted, as the mode is observe; otherwise refused: capacity": {Would: "admit", Reason: "capacity"},
		"would be refused with 503 and told not to come back: capacity":          {Would: "refuse", Reason: "capacity", Status: 503},
	} {
		if got := verdict(&e); got != want {
			t.Errorf("%+v: %s, want %s", e, got, want)
		}
	}
}

// Appointments for the end of a quota are named, and why a client is told more than its tokens take.
func TestAppointmentsOfQuotas(t *testing.T) {
	zone := adminapi.ZoneExplanation{Name: "z", Promises: 4, Promise: new(1.7), BucketExplanation: adminapi.BucketExplanation{Burst: 5, Wait: 1.7}}
	e := adminapi.ExplanationStatus{
		Name: "api", Would: "refuse", Reason: "quota", Zone: "z", Status: 429, RetryAfter: 14, Class: "default", Standing: "stranger",
		Zones: []adminapi.ZoneExplanation{zone},
	}
	want := `api: a request of 192.0.2.1 now would be refused with 429 and Retry-After 14: quota of zone z.
  zone         z: 0 of 5 tokens left, enough for a request in 1.7 s
  appointment  of zone z: due in 1.7 s, the first of 4; a request now is told to come after them, in 14 s
  class        default
`
	var text strings.Builder
	if printExplanation(&text, "192.0.2.1", &e); text.String() != want {
		t.Errorf("the text is\n%swant\n%s", text.String(), want)
	}
}

// No name of a client changes how the rest of a line is seen.
func TestExplainShowsHostileNames(t *testing.T) {
	var out strings.Builder
	printExplanation(&out, "a\x1b[2Jb\u202ec", &adminapi.ExplanationStatus{Name: "s", Would: "admit"})
	if first, _, _ := strings.Cut(out.String(), "\n"); first != `s: a request of "a\x1b[2Jb\u202ec" now would be admitted.` {
		t.Errorf("it says %q", first)
	}
	if err := printOverrides(&out, []adminapi.Override{{ID: "1", Kind: "block", Client: "\u202ex", By: "\x9b"}}); err != nil || strings.ContainsAny(out.String(), "\u202e\u009b") {
		t.Errorf("%v: %q", err, out.String())
	}
}
