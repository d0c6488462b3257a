package caddymodule

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/store"
	"github.com/herdshield/shield/internal/metrics"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
	"github.com/herdshield/shield/share/redis"
)

// eachMetric calls f with all metrics, in the order of the tables in docs/reference/metrics-logs-events.md.
func eachMetric(f func(m documented)) {
	each(f, metrics.Shields)
	each(f, metrics.Zones)
	each(f, store.Metrics)
	each(f, store.SharedMetrics[redis.Backend])
	each(f, store.SharedMetrics[redis.Zone])
	each(f, ownMetrics)
	each(f, buildMetrics)
	each(f, stateMetrics)
}

// A documented metric is all that the page has of it.
type documented struct {
	topic, name, kind, with, help string
	labels                        []string
}

func each[S any](f func(documented), groups []metrics.Group[S]) {
	for _, g := range groups {
		for _, m := range g.Rows {
			f(documented{g.Topic, metrics.Prefix + m.Name, m.Kind, g.With, m.Help, metrics.AllLabels(g.Label, m.Labels)})
		}
	}
}

// wantMetrics looks for samples, as they stand in the text format.
func wantMetrics(t *testing.T, app *App, samples ...string) {
	t.Helper()
	for _, want := range samples {
		sample, value, _ := strings.Cut(want, "} ")
		if got := sampleOf(t, app, sample+"}"); got != value {
			t.Errorf("%s} is %s, want %s", sample, got, value)
		}
	}
}

// Metrics and status show each count as what it is: in the golden file all counts differ.
func TestEachCountIsShown(t *testing.T) {
	s := serveSite(t, "{"+globalOptions+"}\n"+bound+`
	shield {
		name shop
		zone z {
			rate 5/s
		}
		capacity 9/s
		concurrency slo 250ms
		class critical
		retries {
			tickets on
		}
	}
	respond ok
}`)
	reading, zone, n := s.app.configured[0].reading(24*time.Hour), new(shield.ZoneStats), 0
	number(reflect.ValueOf(&reading.Stats).Elem(), &n)
	number(reflect.ValueOf(zone).Elem(), &n)
	reading.Stats.Herd.Kind = pushback.PeriodicHerd
	reading.Stats.Last.Reason = loadshed.Proven
	for _, reason := range loadshed.Reasons() {
		n++
		reading.Stats.Changes[reason] = uint64(n)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collects(func(ch chan<- prometheus.Metric) {
		metrics.Collect(ch, descs, metrics.Shields, &reading.Reading, "shop", false)
		metrics.Collect(ch, descs, metrics.Zones, zone, "z", false)
	}))
	situation := reading.situation(nil)
	situation.Says, situation.Level = "", "" // is oncall's
	status, err := json.MarshalIndent(situation, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	const path = "testdata/counts.txt"
	got := strings.Join(samplesOf(t, registry), "\n") + "\n\n" + string(status) + "\n"
	want, err := os.ReadFile(path)
	switch {
	case *update:
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil { // #nosec G306 -- a file of the tests
			t.Fatal(err)
		}
	case err != nil:
		t.Fatal(err)
	case got != string(want):
		t.Errorf("it isn't %s; run go test ./caddymodule -run TestEachCountIsShown -update, and git diff shows what is:\n%s", path, got)
	}
}

// collects is a prometheus.Collector of what it sends.
type collects func(chan<- prometheus.Metric)

func (collects) Describe(chan<- *prometheus.Desc)      {}
func (f collects) Collect(ch chan<- prometheus.Metric) { f(ch) }

// number sets all numbers in a struct to others, durations to whole seconds.
func number(v reflect.Value, n *int) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			number(v.Field(i), n)
		}
	case reflect.Array:
		for i := range v.Len() {
			number(v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
	case reflect.Int, reflect.Int64:
		if *n++; v.Type() == reflect.TypeFor[time.Duration]() {
			v.SetInt(int64(*n) * int64(time.Second))
		} else {
			v.SetInt(int64(*n))
		}
	case reflect.Uint64:
		*n++
		v.SetUint(uint64(*n))
	case reflect.Float64:
		*n++
		v.SetFloat(float64(*n))
	}
}

// The tables in docs/reference/metrics-logs-events.md, one for each topic, have the rows of the metrics' tables.
func TestMetricsInDocs(t *testing.T) {
	var topics []string
	tables, names := map[string]*strings.Builder{}, map[string]bool{}
	eachMetric(func(m documented) {
		if names[m.name] || strings.HasSuffix(m.name, "_total") != (m.kind == "counter") || !strings.HasSuffix(m.help, ".") || strings.Contains(m.help, "|") {
			t.Errorf("%s, a %s: %q; want a unique name, _total for counters only, and sentences", m.name, m.kind, m.help)
		}
		names[m.name] = true
		quoted := ""
		if len(m.labels) > 0 {
			quoted = "`" + strings.Join(m.labels, "`, `") + "`"
		}
		if tables[m.topic] == nil {
			topics, tables[m.topic] = append(topics, m.topic), new(strings.Builder)
			fmt.Fprintf(tables[m.topic], "\n### %s\n\n| metric | type | labels | requires | meaning |\n|---|---|---|---|---|\n", m.topic)
		}
		fmt.Fprintf(tables[m.topic], "| `%s` | %s | %s | %s | %s |\n", m.name, m.kind, quoted, m.with, m.help)
	})
	const path = "../docs/reference/metrics-logs-events.md"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	old := regexp.MustCompile(`(?s)(<!-- metrics, by [^\n]*\n).*?(<!-- end of metrics -->\n)`).FindSubmatchIndex(page)
	if old == nil {
		t.Fatalf("%s has no place for the metrics", path)
	}
	made := string(page[:old[3]])
	for _, topic := range topics {
		made += tables[topic].String()
	}
	made += "\n" + string(page[old[4]:])
	if *update {
		if err := os.WriteFile(path, []byte(made), 0o644); err != nil { // #nosec G306 -- a page of the documentation
			t.Fatal(err)
		}
	} else if made != string(page) {
		t.Errorf("the tables of metrics in %s are out of date; run go test ./caddymodule -run TestMetricsInDocs -update", path)
	}
}
