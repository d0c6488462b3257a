package matchers

import (
	"net/http"
	"testing"
)

// What counts as speculative are the headers that browsers send with prefetches, and the urgency of background work, as
// structured fields are read.
func TestSpeculative(t *testing.T) {
	for _, c := range []struct {
		is      bool
		headers []string // name, value
	}{
		{true, []string{"Sec-Purpose", "prefetch"}},
		{true, []string{"Sec-Purpose", "prefetch;prerender"}},
		{true, []string{"Sec-Purpose", "prefetch; anonymous-client-ip"}},
		{true, []string{"Purpose", "prefetch"}},
		{true, []string{"Purpose", "prefetch", "Sec-Purpose", "prefetch"}},
		{true, []string{"Priority", "u=7"}},
		{true, []string{"Priority", "u=7, i"}},
		{true, []string{"Priority", "i", "Priority", "u=7"}}, // in two lines
		{true, []string{"Priority", "u=1, u=7"}},             // the last one counts

		{false, nil},
		{false, []string{"Sec-Purpose", ""}},
		{false, []string{"Sec-Purpose", "prefetches"}},
		{false, []string{"Sec-Purpose", `"prefetch"`}},
		{false, []string{"Purpose", "preview"}},
		{false, []string{"Priority", "i"}},
		{false, []string{"Priority", "u=1, i"}}, // fetch() of Chromium
		{false, []string{"Priority", "u=6"}},
		{false, []string{"Priority", "u=77"}},
		{false, []string{"Priority", "u=7.0"}},
		{false, []string{"Priority", "u=(7)"}},
		{false, []string{"Priority", "u=7,,"}}, // no structured field is read in part
		{false, []string{"Priority", "u"}},
		{false, []string{"X-Priority", "u=7"}},
	} {
		r := &http.Request{Header: http.Header{}}
		for i := 0; i < len(c.headers); i += 2 {
			r.Header.Add(c.headers[i], c.headers[i+1])
		}
		if is, err := new(Speculative).MatchWithError(r); is != c.is || err != nil {
			t.Errorf("%q: %v, %v; want %v", c.headers, is, err, c.is)
		}
	}
}
