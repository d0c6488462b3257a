package deploy

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"sigs.k8s.io/yaml"

	_ "github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/k8s/testbed/must"
)

// The chart must not drift from the base.
func TestChartIsTheBase(t *testing.T) {
	for _, c := range []struct{ folder, values string }{
		{"base", ""},
		{"overlays/everything", allValues},
	} {
		t.Run(c.folder, func(t *testing.T) {
			want, got := comparable(kustomize(t, c.folder)), comparable(helm(t, c.values))
			for name, o := range want {
				if name == "Namespace /shield-ingress" {
					continue // helm install --create-namespace
				}
				if !reflect.DeepEqual(o, got[name]) {
					chart, _ := yaml.Marshal(got[name])
					folder, _ := yaml.Marshal(o)
					t.Errorf("%s: the chart has\n%s\nand %s has\n%s", name, chart, c.folder, folder)
				}
			}
			for name := range got {
				if want[name] == nil {
					t.Errorf("%s is only in the chart", name)
				}
			}
		})
	}
}

// comparable returns the objects by name, without labels that name the tool.
func comparable(objects []object) map[string]object {
	byName := map[string]object{}
	for _, o := range objects {
		labels, _ := get(o, "metadata", "labels").(object)
		for _, label := range []string{"app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"} {
			delete(labels, label)
		}
		if strings.HasPrefix(text(o, "kind"), "ValidatingAdmission") {
			delete(o["metadata"].(object), "labels") // the chart has the file unchanged
		}
		byName[id(o)] = o
	}
	return byName
}

func TestValuesThatMeanNothing(t *testing.T) {
	for _, c := range []struct{ values, want string }{
		{"replica: 3", "replica"}, {"kind: StatefulSet", "kind"}, {"image: {digest: latest}", "digest"},
		{"image: {repository: registry.example.com/shield}", "put its registry into image.registry"}, {"hostPort: {http: 0}", "http"},
		{"service: {ipFamilies: [ipv4]}", "ipFamilies"}, {"service: {nodePorts: {htp: 30080}}", "htp"}, {"extraEnv: {A: b}", "extraEnv"},
		{"extraEnv: [{value: x}]", "name"}, {"extraEnv: [{name: A, valeu: x}]", "valeu"}, {"extraVolumes: [{emptyDir: {}}]", "name"},
		{"extraVolumeMounts: [{name: x}]", "mountPath"},
		{"serviceAccount: {create: false}", "serviceAccount.name is empty; use the name of an existing one"},
		{"ingressClass: {create: false, parameters: {rate: 5/s}}", "ingressClass.create is false"},
		{"service: {type: ClusterIP, nodePorts: {http: 30080}}", "service.nodePorts are set, but service.type is ClusterIP"},
		{"fullnameOverride: Shield", "fullnameOverride"}, {"replicas: two", "replicas"}, {"image: {name: x}", "name"},
		{"controller: {shutdownDelay: 1m}", "shutdownDelay"}, {"controller: {replicas: all}", "replicas"},
		{"controller: {replicas: shared}", "controller.store.url is empty; use the URL of the store"},
		{"controller: {replicas: shared, store: {url: redis://redis}}", "controller.store.secretName is empty; use the Secret"},
		{"controller: {replicas: shared, store: {url: 'redis:6379', secretName: store}}", "url"}, {"controller: {namespaces: [Shop]}", "namespaces"},
		{"controller: {extraArgs: [nginx-annotations]}", "extraArgs"}, {"controller: {trustedProxies: [private]}", "trustedProxies"},
		{"controller: {defaultCertificate: tls}", "defaultCertificate"}, {"ingressClass: {parameters: {rates: 5/s}}", "rates"},
		{"ingressClass: {controller: shield}", "controller"}, {"service: {type: ExternalName}", "type"}, {"service: {httpPort: 0}", "httpPort"},
		{"resources: {limit: {memory: 1Gi}}", "limit"}, {"autoscaling: {minReplicas: 9}", "maxReplicas"},
		{"metrics: {serviceMonitor: {enabled: yes please}}", "enabled"}, {"metrics: {prometheusRule: {enabled: true}}", "prometheusRule"},
	} {
		if _, err := helmOutput(t, c.values); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v; want one about %s", c.values, err, c.want)
		}
	}
}

// nodeValues are for clusters without load balancers, and for objects that others make.
//
//go:embed testdata/nodes.yaml
var nodeValues string

// TestValues looks at what is rendered, a line for each path: "=" what is there, "~" words in it, and "!" one that is not.
// There are no objects of the kinds after "none". POD is short for the pod's spec.
func TestValues(t *testing.T) {
	for name, c := range map[string]struct {
		objects []object
		want    string
	}{
		"flags": {helm(t, must.Read(t, "testdata/flags.yaml")), `
			Deployment POD containers 0 args ~ --controller-class=example.com/edge --namespaces=a,b --ingress-class=edge --nginx-annotations --watch-ingress-without-class
			Deployment POD containers 0 args ~ --share-hosts --auth-hosts=auth.example.com,*.auth.svc.cluster.local --prefer-ipv6 --replicas=local --default-certificate=a/tls
			Deployment POD containers 0 args ~ --publish-address=192.0.2.1 --publish-address=lb.example.com --trusted-proxies=10.0.0.0/8,fd00::/8 --proxy-protocol-from=10.0.0.0/8
			Deployment POD containers 0 args ~ --log-level=debug --shutdown-delay=30s --grace-period=60s --more=1
			Deployment POD containers 0 args ! --publish-service
			Deployment 0 spec replicas = 4
			Deployment 0 spec template metadata labels team = edge
			Deployment POD terminationGracePeriodSeconds = 105
			Deployment POD tolerations 0 operator = Exists
			ConfigMap 0 data concurrency = 1000000
			ConfigMap 0 data ssl-redirect = false
			Service 0 spec type = NodePort
			IngressClass 0 metadata annotations ingressclass.kubernetes.io/is-default-class = true
			none HorizontalPodAutoscaler NetworkPolicy PodDisruptionBudget ClusterRole ClusterRoleBinding`},
		"nodes": {helm(t, nodeValues), `
			DaemonSet 0 metadata name = shield-ingress-edge
			DaemonSet 0 spec selector matchLabels app.kubernetes.io/name = edge
			DaemonSet 0 spec replicas = <nil>
			DaemonSet POD topologySpreadConstraints = <nil>
			DaemonSet POD serviceAccountName = theirs
			DaemonSet POD volumes 1 configMap name = ca
			DaemonSet POD containers 0 volumeMounts 1 mountPath = /etc/ca
			DaemonSet POD containers 0 image = registry.example.com/herdshield/shield-ingress@sha256:0123456789012345678901234567890123456789012345678901234567890123
			DaemonSet POD containers 0 env ~ map[name:GOMEMLIMIT value:300MiB]
			Service 0 spec ports 0 nodePort = 30080
			Service 0 spec ports 1 nodePort = <nil>
			Service 0 spec ipFamilies = [IPv6 IPv4]
			Service 1 spec type = LoadBalancer
			Service 1 metadata annotations example.com/internal = true
			Service 1 spec ipFamilyPolicy = PreferDualStack
			none Deployment HorizontalPodAutoscaler PodDisruptionBudget ClusterRole ClusterRoleBinding Role RoleBinding ServiceAccount IngressClass`},
		"names": {helm(t, "{fullnameOverride: front, hostNetwork: true, hostPort: {enabled: true}}"), `
			Deployment 0 metadata name = front
			Deployment POD dnsPolicy = ClusterFirstWithHostNet
			ClusterRoleBinding 0 subjects 0 name = front`},
		// The store's password and secret come from a Secret, which shield needs no right to read.
		"store": {helm(t, "controller: {replicas: shared, store: {url: 'rediss://shield@redis.shop', secretName: store}}"), `
			Deployment POD containers 0 args ~ --replicas=shared --store=rediss://shield@redis.shop
			Deployment POD containers 0 env ~ map[name:SHIELD_SECRET valueFrom:map[secretKeyRef:map[key:secret name:store]]]
			Deployment POD containers 0 env ~ map[name:SHIELD_STORE_PASSWORD valueFrom:map[secretKeyRef:map[key:password name:store optional:true]]]`},
		// On kind a Service of type LoadBalancer has no address, and one node cannot have two pods with one port.
		"kind": {kustomize(t, "overlays/kind"), `
			Deployment POD containers 0 args ~ --publish-address=localhost
			Deployment POD containers 0 args ! --publish-service
			HorizontalPodAutoscaler 0 spec maxReplicas = 1`},
		"kind's nodes": {must.Get(parse([]byte(must.Read(t, "overlays/kind/cluster.yaml"))))(t), `
			Cluster 0 nodes 0 extraPortMappings ~ containerPort:80 hostPort:80 containerPort:443 hostPort:443 listenAddress:127.0.0.1`},
		// Without ports of nodes the next replica begins first, so that each node always has one.
		"nodes without ports": {helm(t, "kind: DaemonSet"), `
			DaemonSet 0 spec updateStrategy rollingUpdate = map[maxSurge:1 maxUnavailable:0]`},
	} {
		for line := range strings.Lines(strings.TrimSpace(c.want)) {
			line = strings.TrimSpace(line)
			if kinds, is := strings.CutPrefix(line, "none "); is {
				for kind := range strings.FieldsSeq(kinds) {
					if n := len(ofKind(c.objects, kind)); n != 0 {
						t.Errorf("%s: there are %d of kind %s; want none", name, n, kind)
					}
				}
				continue
			}
			steps := strings.Fields(strings.Replace(line, " POD ", " 0 spec template spec ", 1))
			at := slices.IndexFunc(steps, func(s string) bool { return strings.Contains("=~!", s) })
			var is any = ofKind(c.objects, steps[0])
			for _, step := range steps[1:at] {
				if n, err := strconv.Atoi(step); err == nil {
					is = reflect.ValueOf(is).Index(n).Interface()
				} else {
					is = get(is, step)
				}
			}
			text, want := fmt.Sprint(is), steps[at+1:]
			has := func(word string) bool { return strings.Contains(text, word) }
			if steps[at] == "=" && text != strings.Join(want, " ") || steps[at] == "~" && slices.ContainsFunc(want, func(word string) bool { return !has(word) }) || steps[at] == "!" && has(want[0]) {
				t.Errorf("%s: %s is %s; want %q", name, strings.Join(steps[:at], " "), text, want)
			}
		}
	}
}

// onNodes returns renderings for clusters without load balancers, by name. Pod Security does
// not call them restricted.
func onNodes(t *testing.T) map[string][]object {
	t.Helper()
	return map[string][]object{
		"overlays/kind":            kustomize(t, "overlays/kind"),
		"chart, own":               helm(t, nodeValues),
		"chart, host ports":        helm(t, "{kind: DaemonSet, hostPort: {enabled: true}, service: {type: ClusterIP}, controller: {publishAddresses: [192.0.2.1]}}"),
		"chart, node's network":    helm(t, "{kind: DaemonSet, hostNetwork: true}"),
		"chart, node's high ports": helm(t, "{hostNetwork: true, hostPort: {http: 8000, https: 8001}}"),
	}
}

func workload(objects []object) object {
	return append(ofKind(objects, "Deployment"), ofKind(objects, "DaemonSet")...)[0]
}

// A replica with ports of the node is alone there: it ends before the next one begins. In the node's
// network it listens on the ports that clients know, and has no more rights than these need.
func TestPortsOfNodes(t *testing.T) {
	for name, want := range map[string]struct {
		http, https  int // of the node
		user         int
		capabilities string
	}{
		"overlays/kind":            {80, 443, 65532, "map[drop:[ALL]]"},
		"chart, own":               {8000, 443, 65532, "map[drop:[ALL]]"},
		"chart, host ports":        {80, 443, 65532, "map[drop:[ALL]]"},
		"chart, node's network":    {80, 443, 0, "map[add:[NET_BIND_SERVICE] drop:[ALL]]"},
		"chart, node's high ports": {8000, 8001, 65532, "map[drop:[ALL]]"},
	} {
		o := workload(onNodes(t)[name])
		pod := get(o, "spec", "template", "spec")
		c := get(pod, "containers", 0)
		update := get(o, "spec", "strategy", "rollingUpdate")
		if text(o, "kind") == "DaemonSet" {
			update = get(o, "spec", "updateStrategy", "rollingUpdate")
		}
		if fmt.Sprint(update) != "map[maxSurge:0 maxUnavailable:1]" {
			t.Errorf("%s: the update is %v; want the old replica to end first", name, update)
		}
		for i, port := range []int{want.http, want.https} {
			p := get(c, "ports", i)
			if fmt.Sprint(get(p, "hostPort")) != fmt.Sprint(port) || get(pod, "hostNetwork") == true && fmt.Sprint(get(p, "containerPort")) != fmt.Sprint(port) {
				t.Errorf("%s: the port is %v; want %d of the node", name, p, port)
			}
			if arg := fmt.Sprintf("--%s-port=%v", text(p, "name"), get(p, "containerPort")); !slices.Contains(words(c, "args"), arg) {
				t.Errorf("%s: the arguments are %v; want %s among them", name, words(c, "args"), arg)
			}
		}
		for _, context := range []any{get(pod, "securityContext"), get(c, "securityContext")} {
			if fmt.Sprint(get(context, "runAsUser")) != fmt.Sprint(want.user) || get(context, "runAsNonRoot") != (want.user != 0) {
				t.Errorf("%s: the securityContext is %v; want the user %d", name, context, want.user)
			}
		}
		if got := fmt.Sprint(get(c, "securityContext", "capabilities")); got != want.capabilities {
			t.Errorf("%s: the capabilities are %s; want %s", name, got, want.capabilities)
		}
	}
}

func module(t *testing.T, version string) string {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", version)
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), "GOWORK=off")
	out, err := run(cmd)
	if err != nil {
		missing(t, "the module cannot be had: %v", err)
	}
	var m struct{ Dir string }
	must.Do(t, json.Unmarshal(out, &m))
	return m.Dir
}

// TestWiring checks that objects find each other: by labels, and by the names of ports.
func TestWiring(t *testing.T) {
	each(t, func(t *testing.T, objects []object) {
		d := ofKind(objects, "Deployment")[0]
		labels, _ := get(d, "spec", "template", "metadata", "labels").(object)
		ports := map[string]bool{}
		pod := get(d, "spec", "template", "spec")
		for _, c := range slices.Concat(list(pod, "containers"), list(pod, "initContainers")) {
			for _, p := range list(c, "ports") {
				ports[text(p, "name")] = true
			}
		}
		selects := func(what string, selector any) {
			t.Helper()
			m, _ := selector.(object)
			for k, v := range m {
				if labels[k] != v {
					t.Errorf("%s selects %v; the pods have %v", what, m, labels)
				}
			}
			if len(m) == 0 {
				t.Errorf("%s selects everything", what)
			}
		}
		for _, c := range list(pod, "topologySpreadConstraints") {
			selects("a topologySpreadConstraint", get(c, "labelSelector", "matchLabels"))
		}
		for kind, path := range map[string][]any{
			"Deployment": {"spec", "selector", "matchLabels"}, "PodDisruptionBudget": {"spec", "selector", "matchLabels"},
			"Service": {"spec", "selector"}, "NetworkPolicy": {"spec", "podSelector", "matchLabels"},
		} {
			for _, o := range ofKind(objects, kind) {
				selects(id(o), get(o, path...))
				for _, rule := range append(list(o, "spec", "ingress"), get(o, "spec")) { // of a NetworkPolicy, and of a Service
					for _, port := range list(rule, "ports") {
						if !ports[text(port, "port")+text(port, "targetPort")] {
							t.Errorf("%s has the port %v; want one of the pod by name", id(o), port)
						}
					}
				}
			}
		}
		for _, a := range ofKind(objects, "HorizontalPodAutoscaler") {
			if text(a, "spec", "scaleTargetRef", "name") != text(d, "metadata", "name") {
				t.Errorf("%s scales %s", id(a), text(a, "spec", "scaleTargetRef", "name"))
			}
			if get(d, "spec", "replicas") != nil {
				t.Error("the Deployment has replicas besides a HorizontalPodAutoscaler: every apply would take back what that has done")
			}
		}
		for _, m := range ofKind(objects, "ServiceMonitor") {
			found := 0
			for _, s := range ofKind(objects, "Service") {
				has, _ := get(s, "metadata", "labels").(object)
				want, _ := get(m, "spec", "selector", "matchLabels").(object)
				both := maps.Clone(has)
				if maps.Copy(both, want); maps.Equal(both, has) {
					found++
				}
			}
			if found != 1 {
				t.Errorf("%s finds %d Services; want the one for metrics", id(m), found)
			}
		}
		for _, v := range list(pod, "volumes") {
			if name := text(v, "configMap", "name"); name != "" && !slices.ContainsFunc(ofKind(objects, "ConfigMap"), func(o object) bool { return text(o, "metadata", "name") == name }) {
				t.Errorf("the volume %s is of a ConfigMap that is not there: %s", text(v, "name"), name)
			}
		}
	})
}

// TestFlags lets the command itself read the arguments in the manifests.
func TestFlags(t *testing.T) {
	command := must.Program(t)
	renderings := onNodes(t)
	maps.Copy(renderings, map[string][]object{
		"base": kustomize(t, "base"), "namespaced": kustomize(t, "overlays/namespaced"), "chart": helm(t, ""),
		"chart, all flags": helm(t, `{ingressClass: {name: x}, controller: {namespaces: [a], watchIngressWithoutClass: true, shareHosts: true, authHosts: ["*.a.svc"], preferIPv6: true, nginxAnnotations: true, defaultCertificate: a/b,
			trustedProxies: [10.0.0.0/8, "fd00::/8"], proxyProtocolFrom: [10.0.0.0/8], logLevel: info}}`),
		"chart, addresses": helm(t, "controller: {publishAddresses: [192.0.2.1, lb.example.com]}"),
	})
	for name, objects := range renderings {
		var args []string
		for _, arg := range words(workload(objects), "spec", "template", "spec", "containers", 0, "args") {
			args = append(args, strings.ReplaceAll(arg, "$(POD_NAMESPACE)", "shield-ingress")) // as the kubelet does
		}
		cmd := exec.Command(command, append(args, "--print-config")...)
		cmd.Env = append(os.Environ(), "POD_NAMESPACE=shield-ingress", "POD_NAME=shield-ingress-0")
		out, err := run(cmd)
		if err != nil || !json.Valid(out) {
			t.Errorf("%s: error is %v, the config %s", name, err, out)
		}
	}
}

// TestMetrics checks that alerts, the dashboard of the controller and the page's queries for autoscalers are PromQL, and ask
// for metrics that there are. Those for any Prometheus, which have copies here, are run in loadtest/lab/monitoring.
func TestMetrics(t *testing.T) {
	// The pages have all metrics: TestMetrics in the folder above and TestMetricsInDocs of caddymodule compare them with the code.
	known := must.Read(t, "../../docs/reference/metrics-logs-events.md") + must.Read(t, "../../docs/kubernetes/reference.md") +
		"\n| `up` |\n| `process_resident_memory_bytes` |" // of Prometheus and of its client library
	var expressions []string
	rules := must.Get(parse([]byte(must.Read(t, "components/monitoring/prometheusrule.yaml"))))(t)
	for _, group := range list(rules[0], "spec", "groups") {
		for _, rule := range list(group, "rules") {
			expressions = append(expressions, text(rule, "expr"))
			for _, need := range [][]any{{"annotations", "summary"}, {"annotations", "description"}} {
				if text(rule, need...) == "" {
					t.Errorf("the alert %s has no %v", text(rule, "alert"), need)
				}
			}
		}
	}
	alerts := len(expressions)
	variables := strings.NewReplacer("$__rate_interval", "1m", "$namespace", ".*", "$ingress", ".*")
	board := regexp.MustCompile(`"(?:expr|definition)": ("(?:[^"\\]|\\.)*")`)
	ofVariable := regexp.MustCompile(`^label_values\((\w+(?:\{.*\})?), \w+\)$`)
	for _, m := range board.FindAllStringSubmatch(must.Read(t, "components/monitoring/dashboards/shield-ingress.json"), -1) {
		expression := variables.Replace(must.Get(strconv.Unquote(m[1]))(t))
		expressions = append(expressions, ofVariable.ReplaceAllString(expression, "$1"))
	}
	queries := regexp.MustCompile(`(?m)^ +(?:query|metricsQuery): (.*)$`).FindAllStringSubmatch(must.Read(t, "../../docs/kubernetes/operate.md"), -1)
	for _, q := range queries {
		expressions = append(expressions, q[1])
	}
	if len(queries) < 3 || alerts < 5 || len(expressions) < alerts+20 {
		t.Fatalf("there are %d alerts, %d queries for autoscalers and %d expressions; want more", alerts, len(queries), len(expressions))
	}

	cmd := exec.Command(goTool(t, "promql"))
	cmd.Stdin = strings.NewReader(strings.Join(expressions, "\n"))
	out := must.Get(run(cmd))(t)
	for i, line := range strings.Split(strings.TrimSuffix(string(out), "\n"), "\n") {
		names := strings.Fields(line)
		if len(names) == 0 {
			t.Errorf("%s asks for no metric", expressions[i])
		}
		for _, name := range names {
			base := regexp.MustCompile("_(bucket|sum|count)$").ReplaceAllString(name, "")
			if !strings.Contains(known, "\n| `"+name+"` |") && !strings.Contains(known, "\n| `"+base+"` |") {
				t.Errorf("%s: there is no metric %s", expressions[i], name)
			}
		}
	}
}

// A chart repository that packaging/chart makes has the chart.
func TestChartRepository(t *testing.T) {
	folder, home := t.TempDir(), t.TempDir()
	server := httptest.NewServer(http.FileServer(http.Dir(folder)))
	defer server.Close()
	env := append(os.Environ(), "HELM="+tool(t, "helm"), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	pack := exec.Command("../../packaging/chart", "-u", server.URL, "-o", folder)
	pack.Env = env
	must.Get(run(pack))(t)
	template := func(chart ...string) string {
		cmd := exec.Command(tool(t, "helm"), append([]string{"template", "shield-ingress", "--kube-version", "1.36.0"}, chart...)...)
		cmd.Env = env
		return string(must.Get(run(cmd))(t))
	}
	if got, want := template("shield-ingress", "--repo", server.URL), template("../chart"); got != want || want == "" {
		t.Errorf("the chart of the repository renders\n%s\nwant\n%s", got, want)
	}
}

// The images that packaging/images makes are those that the manifests name, with their user and ports.
func TestImages(t *testing.T) {
	programs, out := t.TempDir(), t.TempDir()
	for name, folder := range map[string]string{"shield-ingress": "base", "shield": "standalone/deployment"} {
		// Any program does, and this one is small.
		build := exec.Command("go", "build", "-o", filepath.Join(programs, runtime.GOARCH, name), "../testbed/image-pause")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		must.Get(run(build))(t)
		must.Get(run(exec.Command("../../packaging/images", "-p", programs, "-o", out, name)))(t)
		parts := string(must.Get(run(exec.Command("tar", "-xOf", filepath.Join(out, name+".tar"), "--wildcards", "*")))(t))
		manifests := must.Get(json.Marshal(kustomize(t, folder)))(t)
		for want, pattern := range map[string]string{
			`"io.containerd.image.name":"%s"`: `"image":"([^"]*)"`,
			`"User":"%[1]s:%[1]s"`:            `"runAsUser":([0-9]+)`,
			`"%s/tcp":{}`:                     `"containerPort":([0-9]+)`,
		} {
			found := regexp.MustCompile(pattern).FindAllSubmatch(manifests, -1)
			if len(found) == 0 {
				t.Errorf("%s has no %s", folder, pattern)
			}
			for _, m := range found {
				if want := fmt.Sprintf(want, m[1]); !strings.Contains(parts, want) {
					t.Errorf("the image of %s has no %s", name, want)
				}
			}
		}
	}
}

// TestCaddyfiles loads the stand-alone shield's Caddyfiles, but for serving.
func TestCaddyfiles(t *testing.T) {
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for _, kind := range []string{"deployment", "sidecar"} {
		path := filepath.Join("standalone", kind, "Caddyfile")
		b := must.Get(os.ReadFile(path))(t)
		config, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt(b, map[string]any{"filename": path})
		if err != nil || len(warnings) > 0 {
			t.Errorf("%s: error %v, warnings %v", path, err, warnings)
			continue
		}
		var c caddy.Config
		must.Do(t, json.Unmarshal(config, &c))
		if err := caddy.Validate(&c); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}
