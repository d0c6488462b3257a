package commands

import (
	"regexp"
	"strings"
	"testing"

	"github.com/herdshield/shield/caddymodule/adminapi"
)

func TestExplanationText(t *testing.T) {
	e := adminapi.ExplanationStatus{
		Name: "api", Would: "reject", Reason: "quota", Zone: "z", Status: 429, RetryAfter: 14, Class: "default", Standing: "early", Kind: "hammer",
		Zones: []adminapi.ZoneExplanation{{
			Name: "z", Shared: true, Promised: adminapi.Promised{Promises: 4, Promise: new(1.7)}, BucketExplanation: adminapi.BucketExplanation{Burst: 5, Wait: 1.7},
		}},
		Unknown: map[string]string{"by_key": "{http.request.header.X-Key}"},
	}
	var text strings.Builder
	if err := printExplanations(&text, &adminapi.ExplainStatus{Client: "a\x1b[31m", Shields: []adminapi.ExplanationStatus{e}}); err != nil {
		t.Fatal(err)
	}
	if got, want := regexp.MustCompile(` +\n`).ReplaceAllString(text.String(), "\n"), `api: a request from "a\x1b[31m" now would be rejected with 429 and Retry-After 14: quota of zone z.

CLIENT  CLASS    KIND    REASON  RETRY_AFTER_SECONDS  STANDING  STATUS  WOULD   ZONE
api     default  hammer  quota   14                   early     429     reject  z

UNKNOWN  BY_KEY
api      {http.request.header.X-Key}

ZONES  NAME  APPOINTMENT_IN_SECONDS  APPOINTMENTS  BURST  SHARED  WAIT_SECONDS
api    z     1.7                     4             5      yes     1.7

`; got != want {
		t.Errorf("the text is\n%swant\n%s", got, want)
	}
	for want, e := range map[string]adminapi.ExplanationStatus{
		"would wait briefly: capacity": {Would: "queue", Reason: "capacity"},
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
}
