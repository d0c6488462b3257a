// Package monitoring has alerts and a dashboard for protected backends: plain files for any
// Prometheus and Grafana. loadtest/lab/monitoring runs them against a real Prometheus.
package monitoring

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Every metric is on the board, in some form.
func TestEveryMetricIsOnTheBoard(t *testing.T) {
	var board struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "shield.json")), &board); err != nil {
		t.Fatal(err)
	}
	var queries strings.Builder
	var ids []int
	for _, p := range board.Panels {
		ids = append(ids, p.ID)
		for _, target := range p.Targets {
			queries.WriteString(target.Expr + "\n")
		}
	}
	slices.Sort(ids)
	if n := len(ids); n < 20 || len(slices.Compact(ids)) != n {
		t.Errorf("%d panels, some with one id", n)
	}
	rows := regexp.MustCompile("(?m)^\\| `(caddy_shield_\\w+)` \\|").FindAllStringSubmatch(read(t, "../docs/reference/metrics-logs-events.md"), -1)
	if len(rows) < 40 {
		t.Fatalf("docs/reference/metrics-logs-events.md has %d metrics; want more", len(rows))
	}
	for _, row := range rows {
		if name := row[1]; !regexp.MustCompile(name + `(_bucket|_count|_sum)?\b`).MatchString(queries.String()) {
			t.Errorf("%s is in no panel", name)
		}
	}
}

// Every alert has its place in docs/on-call/alerts.md, under the address that it tells, a row of the table there, and a test.
func TestEveryAlertHasARunbook(t *testing.T) {
	page, tests := read(t, "../docs/on-call/alerts.md"), read(t, "shield.rules.test.yml")
	operator := read(t, "../k8s/deploy/components/monitoring/prometheusrule.yaml")
	own := read(t, "shield.rules.yml")
	alerts := regexp.MustCompile(`(?s)- alert: (\w+)\n.*?\n +for: (\w+)\n +labels:\n +severity: (\w+)\n`).FindAllStringSubmatch(operator, -1)
	for _, alert := range alerts {
		name := alert[1]
		if !strings.Contains(page, "\n### "+name+"\n") {
			t.Errorf("docs/on-call/alerts.md has no %s", name)
		}
		if row := "\n| [" + name + "](#" + strings.ToLower(name) + ") | " + alert[3] + " | " + alert[2] + " | "; !strings.Contains(page, row) {
			t.Errorf("docs/on-call/alerts.md has no row %s", row)
		}
		if !strings.Contains(operator, "/docs/on-call/alerts.md#"+strings.ToLower(name)+"\n") {
			t.Errorf("%s has no runbook_url", name)
		}
		if strings.Contains(own, "- alert: "+name+"\n") && strings.Count(tests, `ALERTS{alertname="`+name+`"`) != 2 {
			t.Errorf("%s has not two tests in shield.rules.test.yml", name)
		}
	}
	if n := strings.Count(page, "\n### "); n != len(alerts) || n < 15 {
		t.Errorf("docs/on-call/alerts.md has %d alerts, want %d", n, len(alerts))
	}
}
