package k8s_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
)

//go:generate go test . -run ^TestGenerated$ -update

var update = flag.Bool("update", false, "write the files and tables that are made of others")

// TestGenerated compares what is made of something else with what it is made of. With -update it writes it.
func TestGenerated(t *testing.T) {
	policies := admissionPolicies(t)
	// The operator's object has the group of the plain file, two columns to the right.
	_, group, _ := strings.Cut(must.Read(t, "../monitoring/shield.rules.yml"), "groups:\n")
	rules := splice(t, must.Read(t, "deploy/components/monitoring/prometheusrule.yaml"), `(?s)\n( {4}- name: shield\n.*)$`,
		regexp.MustCompile(`(?m)^(.)`).ReplaceAllString(group, "  $1"))
	board := must.Read(t, "../monitoring/shield.json")
	for path, want := range map[string]string{
		"deploy/components/admission/policies.yaml": policies,

		// Kustomize reads only files below it, and Helm only those below the chart.
		"deploy/components/monitoring/prometheusrule.yaml":    rules,
		"deploy/components/monitoring/dashboards/shield.json": board,
		"chart/files/policies.yaml":                           policies,
		"chart/files/prometheusrule.yaml":                     rules,
		"chart/files/shield-ingress.json":                     must.Read(t, "deploy/components/monitoring/dashboards/shield-ingress.json"),
		"chart/files/shield.json":                             board,

		"chart/values.schema.json": splice(t, must.Read(t, "chart/values.schema.json"),
			`(?s)"parameters": \{.*?"properties": \{\n(.*?)\n {10}\}\n`, parameterSchemas(policy.OnIngress())),
		page: splice(t, splice(t, must.Read(t, page),
			tableUnder("### On an Ingress"), annotationTable(policy.LimitsOnIngress())),
			tableUnder("### On a Service"), annotationTable(policy.OnService())),
		filtersPage: splice(t, must.Read(t, filtersPage), tableUnder("## Annotations"), annotationTable(policy.OnFilters())),
	} {
		switch {
		case must.Read(t, path) == want:
		case *update:
			must.Do(t, os.WriteFile(path, []byte(want), 0o644))
		default:
			t.Errorf("k8s/%s is out of date; run: cd k8s && go test . -run TestGenerated -update", path)
		}
	}
}

// splice returns text with another part in place of what the pattern's group matches.
func splice(t *testing.T, text, pattern, part string) string {
	t.Helper()
	at := regexp.MustCompile(pattern).FindStringSubmatchIndex(text)
	if at == nil {
		t.Fatalf("nothing matches %s", pattern)
	}
	return text[:at[2]] + part + text[at[3]:]
}

func tableUnder(heading string) string { return `\n` + heading + `\n\n<!-- .*\n((?:\|.*\n)+)` }

func annotationTable(list []policy.Annotation) string {
	var b strings.Builder
	b.WriteString("| annotation | meaning | range | default |\n|---|---|---|---|\n")
	for _, a := range list {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", a.Name, a.Meaning, a.Range, a.Default)
	}
	return b.String()
}

// parameterSchemas returns the schemas of the parameters of an IngressClass, which people
// write as YAML has it: 5 and true are no strings there.
func parameterSchemas(list []policy.Annotation) string {
	var all []string
	for _, a := range list {
		if a.Single {
			continue
		}
		all = append(all, fmt.Sprintf(`            %q: {"$ref": "#/definitions/value"}`, a.Name))
	}
	return strings.Join(all, ",\n")
}

// admissionPolicies returns the policies of the API server for both kinds of objects.
func admissionPolicies(t *testing.T) string {
	t.Helper()
	type kind struct {
		Kind, Article, Group, Resource string
		Elsewhere                      string // where those of the other kind belong
		Rows                           []policy.Annotation
		Known, Misplaced               string // lists in CEL
	}
	quoted := func(list, but []policy.Annotation) string {
		var all []string
		for _, a := range list {
			if !slices.ContainsFunc(but, func(b policy.Annotation) bool { return b.Name == a.Name }) {
				all = append(all, "'"+policy.Prefix+a.Name+"'")
			}
		}
		return "[" + strings.Join(all, ", ") + "]"
	}
	ingress, service := policy.OnIngress(), policy.OnService()
	var b bytes.Buffer
	text := strings.ReplaceAll(must.Read(t, "testdata/policies.yaml.tmpl"), "PREFIX", policy.Prefix)
	admission := must.Get(template.New("").Parse(text))(t)
	must.Do(t, admission.Execute(&b, []kind{
		{"ingress", "an Ingress", `"networking.k8s.io"`, "ingresses", "the Service that its requests go to", ingress, quoted(ingress, nil), quoted(service, ingress)},
		{"service", "a Service", `""`, "services", "the Ingress that routes to it", service, quoted(service, nil), quoted(ingress, service)},
	}))
	return b.String()
}
