package site

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/lab/chromium"
	"github.com/herdshield/shield/loadtest/lab/must"
)

// words are what people search for, and the pages that help them.
var words = map[string][]string{
	"rate limiting":        {"guides/choose-a-limit", "guides/migrate", "readme", "start/tutorial"},
	"throttle":             {"guides/choose-a-limit", "on-call/incident", "explain/comparison-and-faq", "reference/glossary"},
	"backpressure":         {"explain/adaptive-limits", "reference/glossary"},
	"DDoS":                 {"guides/scrapers"},
	"JWT":                  {"reference/identify-clients"},
	"FAQ":                  {"explain/comparison-and-faq"},
	"checklist":            {"guides/roll-out"},
	"health check":         {"guides/behind-a-load-balancer"},
	"per path":             {"explain/comparison-and-faq", "guides/choose-a-limit", "reference/configuration"},
	"rollback":             {"guides/roll-out"},
	"circuit breaker":      {"explain/adaptive-limits", "explain/comparison-and-faq", "reference/glossary"},
	"environment variable": {"guides/install", "reference/configuration", "guides/replicas"},
	"API key":              {"reference/identify-clients", "guides/choose-a-limit", "guides/llm"},
	"sizing":               {"guides/sizing"},
	"JSON config":          {"reference/configuration"},
	"Docker":               {"guides/install"},
	"Retry-After":          {"explain/appointments", "reference/responses", "guides/write-a-client"},
	"thundering herd":      {"explain/appointments", "readme", "reference/glossary"},
	"load shedding":        {"explain/adaptive-limits"},
	"adaptive concurrency": {"explain/adaptive-limits"},
	"priority":             {"explain/adaptive-limits", "reference/configuration", "kubernetes/install-and-limit"},
	"Redis":                {"guides/replicas"},
	"replicas":             {"guides/replicas", "kubernetes/operate"},
	"ingress-nginx":        {"kubernetes/migrate-from-ingress-nginx"},
	"Prometheus metrics":   {"reference/metrics-logs-events"},
	"Grafana":              {"on-call/alerts", "reference/metrics-logs-events", "start/tutorial", "guides/install"},
	"WebSocket":            {"guides/write-a-client", "reference/responses"},
	"gRPC":                 {"guides/go", "reference/responses"},
	"LLM tokens":           {"guides/llm"},
	"CDN":                  {"guides/behind-a-load-balancer"},
}

// A reader who searches for a word has a page that helps among the first three results.
func TestSearch(t *testing.T) {
	t.Parallel()
	if len(words) < 30 {
		t.Fatalf("there are %d words", len(words))
	}
	p := open(t, served(t)+"/readme.html")
	p.Eventually(30*time.Second, "the search opens", func() bool {
		return chromium.Eval[bool](p.Tab, `document.querySelector("#local-search button, .VPNavBarSearch button")?.click(), !!document.getElementById("localsearch-input")`)
	})
	ask := func(word string) {
		chromium.Eval[bool](p.Tab, fmt.Sprintf(`(e => { e.value = %q; return e.dispatchEvent(new Event("input", { bubbles: true })); })(document.getElementById("localsearch-input"))`, word))
	}
	results := func() (pages []string) {
		for _, href := range chromium.Eval[[]string](p.Tab, `[...document.querySelectorAll("#localsearch-list a.result")].slice(0, 3).map(a => a.href)`) {
			u := must.Get(url.Parse(href))(t)
			pages = append(pages, strings.TrimSuffix(strings.TrimPrefix(u.Path, "/"), ".html"))
		}
		return pages
	}
	for word, want := range words {
		ask("")
		p.Eventually(30*time.Second, "the results before are gone", func() bool { return len(results()) == 0 })
		ask(word)
		var got []string
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			if got = results(); len(got) > 0 || chromium.Eval[bool](p.Tab, `!!document.querySelector("#localsearch-list .no-results")`) {
				break
			}
		}
		t.Logf("%s: %q", word, got)
		if !slices.ContainsFunc(got, func(page string) bool { return slices.Contains(want, page) }) {
			t.Errorf("%q leads to %q; want one of %q", word, got, want)
		}
	}
}
