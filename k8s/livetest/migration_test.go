package livetest

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/k8s/migrate"
	"github.com/herdshield/shield/k8s/policy"
)

// Ingresses of ingress-nginx with guards are not served without them until that is meant, and
// say so; without the flag they say so, too.
func TestMigration(t *testing.T) {
	s, ns := shop(t, "migration")
	s.Serve(t, service(ns, "web"), "red", nil)
	for name, annotations := range map[string][]string{
		"plain":       nil,
		"basic":       {"auth-type", "basic", "auth-secret", "users", "auth-realm", "Shop"},
		"waf":         {"enable-modsecurity", "true", "enable-owasp-core-rules", "true"},
		"certificate": {"auth-tls-secret", "shop/ca", "auth-tls-verify-client", "on"},
		"satisfy":     {"satisfy", "any"},
		"snippet":     {"configuration-snippet", "deny all;"},
		"source":      {"whitelist-source-range", "198.51.100.0/24"},
		"weaker":      {"server-alias", "alias.example.com", "made-up", "x", "proxy-buffering", "on"},
	} {
		i := webIngress(ns, name, name+".example.com", "/", "web")
		i.Annotations = map[string]string{}
		for n := 0; n < len(annotations); n += 2 {
			i.Annotations[policy.NginxPrefix+annotations[n]] = annotations[n+1]
		}
		s.Create(t, i)
	}
	p := begin(t, s.AdminKubeconfig(t), "one", "--nginx-annotations")
	for host, status := range map[string]int{
		"plain": 200, "basic": 503, "waf": 503, "certificate": 503, "satisfy": 503, "snippet": 503, "source": 403, "weaker": 200,
	} {
		p.Serves(host+".example.com", "/", status, 5*time.Second)
	}
	s.Told(t, ns, "basic", "NginxGuard", "auth-realm, auth-secret, auth-type")
	s.Told(t, ns, "waf", "NginxGuard", "enable-modsecurity, enable-owasp-core-rules")
	s.Told(t, ns, "weaker", "NginxNotRead", "made-up, proxy-buffering, server-alias")
	if n := p.Metric(`shield_ingress_problems{reason="NginxGuard"}`); n != 5 {
		t.Errorf("%v Ingresses are closed in the metric, want 5", n)
	}

	// The command says the same of the cluster.
	var stdout, stderr bytes.Buffer
	code := migrate.Main([]string{"--kubeconfig", s.AdminKubeconfig(t), "--namespaces", ns}, nil, &stdout, &stderr)
	if code != 2 || !strings.Contains(stdout.String(), "Ingresses: 8; as before: 2, weaker: 1, refused: 5\n") {
		t.Errorf("exit code %d: %s%s", code, &stdout, &stderr)
	}

	// A waiver opens what it names.
	basic := webIngress(ns, "basic", "")
	s.Patch(t, basic, "", "metadata: {annotations: {"+annotation+`ignore-nginx: "auth-type, auth-secret, auth-realm"}}`)
	p.Serves("basic.example.com", "/", 200, 5*time.Second)
	s.Patch(t, basic, "", "metadata: {annotations: {"+policy.NginxPrefix+"satisfy: all}}")
	p.Serves("basic.example.com", "/", 503, 5*time.Second)
}
