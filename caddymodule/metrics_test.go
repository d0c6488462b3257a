package caddymodule

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// declared returns the kind and help of all metrics, by name.
func declared() map[string][2]string {
	all := map[string][2]string{}
	for _, g := range shieldMetrics {
		for _, m := range g.metrics {
			all[m.name] = [2]string{m.kind, m.help}
		}
	}
	for _, g := range zoneMetrics {
		for _, m := range g.metrics {
			all[m.name] = [2]string{m.kind, m.help}
		}
	}
	for _, g := range buildMetrics {
		for _, m := range g.metrics {
			all[m.name] = [2]string{m.kind, m.help}
		}
	}
	for _, g := range backendStoreMetrics {
		for _, m := range g.metrics {
			all[m.name] = [2]string{m.kind, m.help}
		}
	}
	for _, g := range zoneStoreMetrics {
		for _, m := range g.metrics {
			all[m.name] = [2]string{m.kind, m.help}
		}
	}
	for _, g := range storeMetrics {
		for _, m := range g.metrics {
			all[m.name] = [2]string{m.kind, m.help}
		}
	}
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
	for _, g := range shieldMetrics {
		for _, m := range g.metrics {
			document(t, &table, names, g.label, g.with, m)
		}
	}
	for _, g := range zoneMetrics {
		for _, m := range g.metrics {
			document(t, &table, names, g.label, g.with, m)
		}
	}
	for _, g := range buildMetrics {
		for _, m := range g.metrics {
			document(t, &table, names, g.label, g.with, m)
		}
	}
	for _, g := range storeMetrics {
		for _, m := range g.metrics {
			document(t, &table, names, g.label, g.with, m)
		}
	}
	for _, g := range backendStoreMetrics {
		for _, m := range g.metrics {
			document(t, &table, names, g.label, g.with, m)
		}
	}
	for _, g := range zoneStoreMetrics {
		for _, m := range g.metrics {
			document(t, &table, names, g.label, g.with, m)
		}
	}
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

// document writes the row of one metric.
func document[S any](t *testing.T, table *strings.Builder, names map[string]bool, label, with string, m metric[S]) {
	t.Helper()
	if names[m.name] || !strings.HasPrefix(m.name, "caddy_shield_") || strings.HasSuffix(m.name, "_total") != (m.kind == counter) || !strings.HasSuffix(m.help, ".") || strings.Contains(m.help, "|") {
		t.Errorf("%s, a %s: %q; want a unique name, _total for counters only, and sentences", m.name, m.kind, m.help)
	}
	names[m.name] = true
	quoted := ""
	if all := labels(label, m.labels); len(all) > 0 {
		quoted = "`" + strings.Join(all, "`, `") + "`"
	}
	fmt.Fprintf(table, "| `%s` | %s | %s | %s | %s |\n", m.name, m.kind, quoted, with, m.help)
}
