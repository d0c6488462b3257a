package commands

import (
	"strings"
	"testing"

	"github.com/herdshield/shield/caddymodule/adminapi"
)

func TestVerdict(t *testing.T) {
	for want, e := range map[string]adminapi.ExplanationStatus{
		"would be rejected with 429 and Retry-After 14: quota of zone z":                  {Would: "reject", Reason: "quota", Zone: "z", Status: 429, RetryAfter: 14},
		"would wait briefly: capacity":                                                    {Would: "queue", Reason: "capacity"},
		"would be admitted because the mode is observe, but otherwise rejected: capacity": {Would: "admit", Reason: "capacity"},
		"would be rejected with 503 and told not to retry: capacity":                      {Would: "reject", Reason: "capacity", Status: 503},
	} {
		if got := verdict(&e); got != want {
			t.Errorf("%+v: %s, want %s", e, got, want)
		}
	}
}

// No name of a client changes how the rest of a line is seen.
func TestHostileNames(t *testing.T) {
	var out strings.Builder
	_ = printExplanations(&out, &adminapi.ExplainStatus{Client: "a\x1b[2Jb\u202ec", Shields: []adminapi.ExplanationStatus{{Name: "s", Would: "admit"}}})
	if first, _, _ := strings.Cut(out.String(), "\n"); first != `s: a request from "a\x1b[2Jb\u202ec" now would be admitted.` {
		t.Errorf("it says %q", first)
	}
	if err := printOverrides(&out, []adminapi.Override{{ID: "1", Kind: "block", Client: "\u202ex", By: "\x9b"}}); err != nil || strings.ContainsAny(out.String(), "\u202e\u009b") {
		t.Errorf("%v: %q", err, out.String())
	}
	out.Reset()
	hostile := adminapi.WhoList{Name: "shop", Rejected: []adminapi.RejectedClient{{Client: "\x1b[2J\u009b1m", LastMinute: 3, PerSecond: .05, Reason: "quota", Agent: "other", Path: "GET /\x1b"}}}
	_ = printWho(&out, &adminapi.WhoStatus{Shields: []adminapi.WhoList{hostile}, Zones: []adminapi.WhoList{hostile}})
	for _, list := range []string{"shop     ", "zone shop"} {
		if want := list + `  "\x1b[2J\u009b1m"  other  3            "GET /\x1b"  0.05        quota`; !strings.Contains(out.String(), want) {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
}
