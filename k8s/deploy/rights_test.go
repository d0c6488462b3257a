package deploy

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/k8s/testbed/must"
)

// The only permissions of shield.
var (
	readsEverywhere = []string{
		"get,list,watch networking.k8s.io/ingresses", "patch networking.k8s.io/ingresses/status",
		"get,list,watch services", "get,list,watch secrets", "get,list,watch discovery.k8s.io/endpointslices",
		"create,patch events",
	}
	doesAtHome = []string{
		"create coordination.k8s.io/leases", "get,update coordination.k8s.io/leases shield-ingress", "get,list,watch configmaps",
	}
	readsAtHome = []string{"get,list,watch services", "get,list,watch discovery.k8s.io/endpointslices"}
)

func TestRBAC(t *testing.T) {
	classes := "get,list,watch networking.k8s.io/ingressclasses"
	everywhere := map[string][]string{"": append([]string{classes}, readsEverywhere...), "shield-ingress": doesAtHome}
	some := map[string][]string{"shop": readsEverywhere, "shield-ingress": append(slices.Clone(doesAtHome), readsAtHome...)}
	for _, c := range []struct {
		name    string
		objects []object
		want    map[string][]string // by namespace
	}{
		{"base", kustomize(t, "base"), everywhere},
		{"everything", kustomize(t, "overlays/everything"), everywhere},
		{"namespaced", kustomize(t, "overlays/namespaced"), some},
		{"chart", helm(t, ""), everywhere},
		{"chart, namespaced", helm(t, "controller: {namespaces: [shop]}"), some},
		{"deployment", kustomize(t, "standalone/deployment"), map[string][]string{}},
		{"sidecar", kustomize(t, "standalone/sidecar"), map[string][]string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := map[string][]string{}
			for _, b := range append(ofKind(c.objects, "RoleBinding"), ofKind(c.objects, "ClusterRoleBinding")...) {
				namespace := text(b, "metadata", "namespace")
				if subjects := fmt.Sprint(list(b, "subjects")); subjects != "[map[kind:ServiceAccount name:shield-ingress namespace:shield-ingress]]" {
					t.Errorf("%s is for %v; want the ServiceAccount shield-ingress only", id(b), subjects)
				}
				for _, r := range ofKind(c.objects, text(b, "roleRef", "kind")) {
					if text(r, "metadata", "name") == text(b, "roleRef", "name") && text(r, "metadata", "namespace") == namespace {
						got[namespace] = append(got[namespace], rights(r)...)
					}
				}
			}
			for _, all := range []map[string][]string{got, c.want} {
				for _, list := range all {
					slices.Sort(list)
				}
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("rights by namespace are\n%q\nwant\n%q", got, c.want)
			}
		})
	}
}

// rights returns what a role allows: "verbs group/resource names".
func rights(role object) []string {
	var all []string
	for _, rule := range list(role, "rules") {
		verbs := words(rule, "verbs")
		slices.Sort(verbs)
		for _, group := range words(rule, "apiGroups") {
			for _, resource := range words(rule, "resources") {
				if group != "" {
					resource = group + "/" + resource
				}
				all = append(all, strings.Join(append([]string{strings.Join(verbs, ","), resource}, words(rule, "resourceNames")...), " "))
			}
		}
		if get(rule, "nonResourceURLs") != nil {
			all = append(all, "* of nonResourceURLs")
		}
	}
	return all
}

// TestRestricted checks what the Pod Security Standard restricted does not ask for: that TestServer asks the
// API server, which warns.
func TestRestricted(t *testing.T) {
	each(t, func(t *testing.T, objects []object) {
		for _, ns := range ofKind(objects, "Namespace") {
			for _, mode := range []string{"enforce", "audit", "warn"} {
				if got := get(ns, "metadata", "labels", "pod-security.kubernetes.io/"+mode); got != "restricted" {
					t.Errorf("%s: %s is %v; want restricted", id(ns), mode, got)
				}
			}
		}
		pod := get(ofKind(objects, "Deployment")[0], "spec", "template", "spec")
		expect := func(what string, got, want any) {
			t.Helper()
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s is %v; want %v", what, got, want)
			}
		}
		expect("automountServiceAccountToken", get(pod, "automountServiceAccountToken"), get(pod, "serviceAccountName") != nil)
		for _, c := range slices.Concat(list(pod, "containers"), list(pod, "initContainers")) {
			name := text(c, "name")
			for key, want := range map[string]any{"readOnlyRootFilesystem": true, "runAsUser": 65532, "runAsGroup": 65532} {
				expect(name+": "+key, get(c, "securityContext", key), want)
			}
			for _, need := range [][]any{{"resources", "requests", "cpu"}, {"resources", "requests", "memory"}, {"resources", "limits", "memory"}, {"readinessProbe"}} {
				if get(c, need...) == nil {
					t.Errorf("%s: has no %v", name, need)
				}
			}
			if _, tag, ok := strings.Cut(text(c, "image"), ":"); !ok || tag == "latest" {
				t.Errorf("%s: image is %s; want a fixed version", name, text(c, "image"))
			}
			for _, port := range list(c, "ports") {
				if n, _ := get(port, "containerPort").(float64); n < 1024 {
					t.Errorf("%s: port %v; want one that needs no privilege", name, port)
				}
			}
			if !strings.HasPrefix(name, "shield") {
				continue // the example of an app
			}
			for probe, path := range map[string]string{"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"} {
				expect(name+": "+probe, get(c, probe, "httpGet"), object{"path": path, "port": "status"})
			}
			if !slices.ContainsFunc(list(c, "volumeMounts"), func(m any) bool { return text(m, "mountPath") == "/tmp" }) {
				t.Errorf("%s: nothing is mounted at /tmp", name)
			}
		}
	})
}

// TestTerminates checks that a pod is not killed while it drains as it was told to, by flags or by a Caddyfile.
func TestTerminates(t *testing.T) {
	told := regexp.MustCompile(`(?:shutdown.delay|grace.period)[= ](\w+)`)
	for name, objects := range map[string][]object{
		"base": kustomize(t, "base"), "namespaced": kustomize(t, "overlays/namespaced"), "chart": helm(t, ""),
		"chart, slower": helm(t, "controller: {shutdownDelay: 100s, gracePeriod: 300s}"),
		"deployment":    kustomize(t, "standalone/deployment"), "sidecar": kustomize(t, "standalone/sidecar"),
	} {
		takes := time.Duration(0)
		all := told.FindAllStringSubmatch(string(must.Get(json.Marshal(objects))(t)), -1)
		for _, m := range all {
			takes += must.Get(time.ParseDuration(m[1]))(t)
		}
		pod := get(ofKind(objects, "Deployment")[0], "spec", "template", "spec")
		if s, ok := get(pod, "containers", 0, "lifecycle", "preStop", "sleep", "seconds").(float64); ok {
			takes += time.Duration(s) * time.Second
		}
		period, _ := get(pod, "terminationGracePeriodSeconds").(float64)
		if spare := time.Duration(period)*time.Second - takes; takes == 0 || spare < 10*time.Second {
			t.Errorf("%s: draining takes %v, as %q says, and the pod is killed after %v s; want at least 10 s in between", name, takes, all, period)
		}
	}
}
