package caddymodule

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/herdshield/shield/internal/metrics"
	"github.com/herdshield/shield/share/redis"
)

// eachMetric calls f with all metrics, in the order of the table in docs/operating.md.
func eachMetric(f func(m documented)) {
	each(f, metrics.Shields)
	each(f, ownMetrics)
	each(f, metrics.Zones)
	each(f, buildMetrics)
	each(f, storeMetrics)
	each(f, sharedMetrics[redis.Backend])
	each(f, sharedMetrics[redis.Zone])
}

// A documented metric is all that the table has of it.
type documented struct {
	name, kind, with, help string
	labels                 []string
}

func each[S any](f func(documented), groups []metrics.Group[S]) {
	for _, g := range groups {
		for _, m := range g.Rows {
			f(documented{prefix + m.Name, m.Kind, g.With, m.Help, metrics.AllLabels(g.Label, m.Labels)})
		}
	}
}

// declared returns the kind and help of all metrics, by name.
func declared() map[string][2]string {
	all := map[string][2]string{}
	eachMetric(func(m documented) { all[m.name] = [2]string{m.kind, m.help} })
	return all
}

// wantMetrics compares metrics, those of the given names or all, with samples in the text
// format.
func wantMetrics(t *testing.T, app *App, samples string, names ...string) {
	t.Helper()
	all, text, last := declared(), strings.Builder{}, ""
	for line := range strings.Lines(samples) {
		name, _, _ := strings.Cut(line, "{")
		name, _, _ = strings.Cut(name, " ")
		if all[name][0] == "" {
			name = regexp.MustCompile("_(bucket|sum|count)$").ReplaceAllString(name, "")
		}
		if name != last && all[name][0] != "" {
			fmt.Fprintf(&text, "# HELP %s %s\n# TYPE %s %s\n", name, all[name][1], name, all[name][0])
			last = name
		}
		text.WriteString(line)
	}
	if len(names) == 0 { // all but those that are never alike
		for name := range all {
			if name != "caddy_shield_request_duration_seconds" && name != "caddy_shield_build_info" {
				names = append(names, name)
			}
		}
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector{app})
	if err := testutil.GatherAndCompare(registry, strings.NewReader(text.String()), names...); err != nil {
		t.Error(err)
	}
}

// The table in docs/operating.md has the rows of the metrics' tables.
func TestMetricsInDocs(t *testing.T) {
	var table strings.Builder
	table.WriteString("| metric | type | labels | with | meaning |\n|---|---|---|---|---|\n")
	names := map[string]bool{}
	eachMetric(func(m documented) {
		if names[m.name] || strings.HasSuffix(m.name, "_total") != (m.kind == "counter") || !strings.HasSuffix(m.help, ".") || strings.Contains(m.help, "|") {
			t.Errorf("%s, a %s: %q; want a unique name, _total for counters only, and sentences", m.name, m.kind, m.help)
		}
		names[m.name] = true
		quoted := ""
		if len(m.labels) > 0 {
			quoted = "`" + strings.Join(m.labels, "`, `") + "`"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s | %s |\n", m.name, m.kind, quoted, m.with, m.help)
	})
	const path = "../docs/operating.md"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	old := regexp.MustCompile(`(?m)^\| metric \|.*\n(\|.*\n)+`)
	if n := len(old.FindAll(page, -1)); n != 1 {
		t.Fatalf("%s has %d tables of metrics; want one", path, n)
	}
	made := old.ReplaceAllLiteral(page, []byte(table.String()))
	if *update {
		if err := os.WriteFile(path, made, 0o644); err != nil { // #nosec G306 -- a page of the documentation
			t.Fatal(err)
		}
	} else if string(made) != string(page) {
		t.Errorf("the table of metrics in %s is out of date; run go test ./caddymodule -run TestMetricsInDocs -update", path)
	}
}
