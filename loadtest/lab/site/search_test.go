package site

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// words are what people search for, and the pages that help them.
var words = map[string][]string{
	"rate limiting":        {"readme", "guides/choose-a-limit", "start/tutorial", "reference/configuration", "explain/comparison-and-faq"},
	"throttle":             {"guides/choose-a-limit", "explain/comparison-and-faq", "guides/llm", "reference/configuration", "readme"},
	"backpressure":         {"explain/comparison-and-faq", "explain/appointments", "explain/adaptive-limits", "guides/choose-a-limit", "reference/glossary", "readme"},
	"DDoS":                 {"security", "explain/comparison-and-faq", "guides/scrapers", "on-call/incident"},
	"JWT":                  {"reference/identify-clients", "guides/choose-a-limit", "guides/llm", "reference/configuration"},
	"FAQ":                  {"explain/comparison-and-faq"},
	"checklist":            {"guides/roll-out", "guides/install", "on-call/incident", "guides/choose-a-limit", "readme", "docs"},
	"health check":         {"guides/behind-a-load-balancer", "guides/choose-a-limit", "reference/configuration", "kubernetes/operate", "guides/install", "reference/identify-clients"},
	"per path":             {"guides/choose-a-limit", "reference/configuration", "reference/identify-clients", "kubernetes/install-and-limit"},
	"rollback":             {"guides/roll-out", "guides/install", "kubernetes/operate", "reference/stability", "kubernetes/migrate-from-ingress-nginx", "guides/migrate"},
	"circuit breaker":      {"explain/adaptive-limits", "explain/comparison-and-faq", "guides/choose-a-limit", "guides/migrate", "reference/in-flight-and-time-outs"},
	"environment variable": {"reference/configuration", "guides/install", "reference/cli", "guides/replicas"},
	"API key":              {"reference/identify-clients", "guides/choose-a-limit", "reference/configuration", "guides/llm"},
	"sizing":               {"guides/sizing", "guides/choose-a-limit", "guides/plan-from-your-log", "kubernetes/operate", "explain/performance"},
	"JSON config":          {"reference/configuration", "guides/install"},
	"Docker":               {"guides/install", "start/tutorial", "readme"},
	"Retry-After":          {"reference/responses", "explain/appointments", "guides/write-a-client", "readme"},
	"thundering herd":      {"explain/appointments", "readme", "reference/glossary", "explain/comparison-and-faq", "guides/simulate-and-load-test"},
	"load shedding":        {"explain/adaptive-limits", "guides/choose-a-limit", "readme", "reference/glossary", "explain/comparison-and-faq", "guides/go"},
	"adaptive concurrency": {"explain/adaptive-limits", "guides/choose-a-limit", "reference/configuration"},
	"priority":             {"guides/choose-a-limit", "reference/configuration", "reference/identify-clients", "kubernetes/reference", "explain/adaptive-limits", "reference/in-flight-and-time-outs"},
	"Redis":                {"guides/replicas", "reference/configuration"},
	"replicas":             {"guides/replicas", "kubernetes/operate"},
	"ingress-nginx":        {"kubernetes/migrate-from-ingress-nginx"},
	"Prometheus metrics":   {"reference/metrics-logs-events", "on-call/alerts", "guides/opentelemetry-collector"},
	"Grafana":              {"on-call/alerts", "reference/metrics-logs-events", "start/tutorial", "guides/install", "guides/opentelemetry-collector"},
	"WebSocket":            {"reference/responses", "guides/write-a-client", "reference/in-flight-and-time-outs", "reference/configuration"},
	"gRPC":                 {"reference/responses", "guides/go", "kubernetes/routing-and-tls", "guides/write-a-client"},
	"LLM tokens":           {"guides/llm"},
	"CDN":                  {"reference/identify-clients", "guides/behind-a-load-balancer", "guides/scrapers"},
}

// A reader who searches for a word has a page that helps among the first three results.
func TestSearch(t *testing.T) {
	t.Parallel()
	if len(words) < 30 {
		t.Fatalf("there are %d words", len(words))
	}
	p := open(t, served(t)+"/readme.html")
	eventually(t, 30*time.Second, "the search opens", func() bool {
		return eval[bool](p, `document.querySelector("#local-search button, .VPNavBarSearch button")?.click(), !!document.getElementById("localsearch-input")`)
	})
	ask := func(word string) {
		eval[bool](p, fmt.Sprintf(`(e => { e.value = %q; return e.dispatchEvent(new Event("input", { bubbles: true })); })(document.getElementById("localsearch-input"))`, word))
	}
	results := func() (pages []string) {
		for _, href := range eval[[]string](p, `[...document.querySelectorAll("#localsearch-list a.result")].slice(0, 3).map(a => a.href)`) {
			u, err := url.Parse(href)
			if err != nil {
				t.Fatal(err)
			}
			pages = append(pages, strings.TrimSuffix(strings.TrimPrefix(u.Path, "/"), ".html"))
		}
		return pages
	}
	for word, want := range words {
		ask("")
		eventually(t, 30*time.Second, "the results before are gone", func() bool { return len(results()) == 0 })
		ask(word)
		var got []string
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			if got = results(); len(got) > 0 || eval[bool](p, `!!document.querySelector("#localsearch-list .no-results")`) {
				break
			}
		}
		t.Logf("%s: %q", word, got)
		if !slices.ContainsFunc(got, func(page string) bool { return slices.Contains(want, page) }) {
			t.Errorf("%q leads to %q; want one of %q", word, got, want)
		}
	}
}
