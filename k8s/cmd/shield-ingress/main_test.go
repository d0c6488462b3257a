package main

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/pflag"

	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/k8s/ingress"
	"github.com/herdshield/shield/k8s/testbed/must"
)

// asCommand makes the test binary run as shield-ingress.
const asCommand = "SHIELD_INGRESS_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func pod(name string) string {
	return map[string]string{"POD_NAMESPACE": "shield-ingress", "POD_NAME": "shield-ingress-1"}[name]
}

func nowhere(string) string { return "" }

func TestFlags(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		env  func(string) string
		want func(*ingress.Options)
	}{
		{"none, in a pod", nil, pod, func(o *ingress.Options) {
			o.App.Namespace, o.App.Pod, o.App.Service = "shield-ingress", "shield-ingress-1", "shield-ingress/shield-ingress"
		}},
		{"none, elsewhere", nil, nowhere, func(*ingress.Options) {}},
		{"all", []string{
			"--kubeconfig=/k", "--controller-class=example.com/x", "--ingress-class=x", "--watch-ingress-without-class", "--namespaces=a,b", "--namespaces", "c,a",
			"--publish-address=192.0.2.1,lb.example.com", "--default-certificate=a/b.c", "--nginx-annotations", "--body-size=8m", "--share-hosts", "--auth-hosts=auth.example.com,*.a.svc", "--auth-hosts=10.0.0.1", "--prefer-ipv6", "--replicas=local",
			"--service=a/b", "--http-port=80", "--https-port=443", "--status-port=9000", "--trusted-proxies=10.0.0.0/8, 192.0.2.1",
			"--trusted-proxies=2001:db8::/32,10.0.0.0/8", "--proxy-protocol-from=::1", "--shutdown-delay=0s", "--grace-period=1m", "--log-level=Debug", "--access-log",
		}, nowhere, func(o *ingress.Options) {
			a := o.App
			a.Kubeconfig, a.Controller, a.IngressClass, a.WatchWithoutClass = "/k", "example.com/x", "x", true
			a.Namespaces, a.PublishAddresses = []string{"a", "b", "c"}, []string{"192.0.2.1", "lb.example.com"}
			a.DefaultCertificate, a.NginxAnnotations, a.BodySize, a.Replicas, a.Service = "a/b.c", true, 8<<20, "local", "a/b"
			a.ShareHosts, a.PreferIPv6 = true, true
			a.AuthHosts = []string{"auth.example.com", "*.a.svc", "10.0.0.1"}
			o.HTTPPort, o.HTTPSPort, o.StatusPort = 80, 443, 9000
			var trusted, proxies prefixes
			_ = trusted.Set("10.0.0.0/8,192.0.2.1/32,2001:db8::/32")
			_ = proxies.Set("::1/128")
			o.TrustedProxies, o.ProxyProtocolFrom = trusted, proxies
			o.ShutdownDelay, o.GracePeriod, o.LogLevel, o.AccessLog = 0, time.Minute, "DEBUG", true
		}},
		{"shared", []string{"--replicas=shared", "--store=rediss://shield@redis/?prefix=shop"}, func(name string) string {
			return map[string]string{"SHIELD_SECRET": "correct horse battery", "SHIELD_STORE_PASSWORD": "horse"}[name]
		}, func(o *ingress.Options) {
			o.App.Replicas = "shared"
			o.Store = &caddymodule.Store{
				Type: "redis", Address: []string{"redis"}, TLS: new(caddymodule.StoreTLS), Username: "shield", Prefix: "shop",
				Secret: "{env.SHIELD_SECRET}", Password: "{env.SHIELD_STORE_PASSWORD}",
			}
		}},
		{"empty, as charts write them", []string{"--service=", "--publish-service=", "--default-certificate="}, pod, func(o *ingress.Options) {
			o.App.Namespace, o.App.Pod = "shield-ingress", "shield-ingress-1"
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := must.Get(parse(c.args, c.env))(t)
			want := ingress.DefaultOptions()
			want.App.Controller, want.App.Replicas = "herdshield.io/ingress", "divided"
			c.want(&want)
			if !reflect.DeepEqual(got.options, want) {
				t.Errorf("options = %+v, %+v\nwant %+v, %+v", got.options, got.options.App, want, want.App)
			}
		})
	}
}

// Every error names the flag, what is, and what is wanted.
func TestBadFlags(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--body-size=8MB", "use a size like 100m, or off"},
		{"--http-port=0", `invalid argument "0" for "--http-port" flag: use a port, 1 to 65535`},
		{"--https-port=http", `invalid argument "http" for "--https-port" flag: use a port, 1 to 65535`}, {"--status-port=65536", "use a port"},
		{"--status-port=8080", "the HTTP port and the status port are both 8080; use different ports"},
		{"--trusted-proxies=10.0.0.0/33", `"10.0.0.0/33" is not an address or a CIDR like 10.0.0.0/8`},
		{"--trusted-proxies=10.0.0.1/8", "use 10.0.0.0/8 or 10.0.0.1/32"}, {"--trusted-proxies=", `"" is not an address or a CIDR`},
		{"--proxy-protocol-from=lb.example.com", "is not an address or a CIDR"}, {"--proxy-protocol-from=fe80::1%eth0", "is not an address or a CIDR"},
		{"--auth-hosts=a.b,*", `"*" is not an address, or a host like auth.example.com or *.example.com`}, {"--auth-hosts=a.*.b", `"a.*.b" is not`}, {"--auth-hosts=", `"" is not`},
		{"--namespaces=a,B", `"B" is not a name of lower-case letters`}, {"--namespaces=", `"" is not a name`},
		{"--publish-service=lb", `invalid argument "lb" for "--publish-service" flag: use namespace/name`},
		{"--default-certificate=a/b/c", "use namespace/name"}, {"--service=/b", "use namespace/name"}, {"--service=a/b", "POD_NAME is not set"},
		{"--publish-address=1.2.3", `"1.2.3" is not an IP address or a host name`}, {"--publish-address=http://a", "is not an IP address"},
		{"--publish-address=a --publish-service=b/c", "use one of them"}, {"--controller-class=shield", "use a domain and a path"},
		{"--ingress-class=Shield", "use a name"}, {"--replicas=all", `invalid argument "all" for "--replicas" flag: use divided, shared or local`},
		{"--replicas=shared", "--replicas shared and --store belong together; use both or neither"},
		{"--store=redis://redis", "--replicas shared and --store belong together"},
		{"--replicas=shared --store=redis:6379", "--store isn't a redis:// or rediss:// URL"},
		{"--replicas=shared --store=redis://:horse@redis", "put it in the environment variable SHIELD_STORE_PASSWORD, from a Secret"},
		{"--replicas=shared --store=redis://redis", "the environment variable SHIELD_SECRET is not set; set it to at least 16 bytes"},
		{"--shutdown-delay=10", `invalid argument "10" for "--shutdown-delay" flag`}, {"--shutdown-delay=-1s", "the shutdown delay is -1s"},
		{"--grace-period=0s", "the grace period is 0s"}, {"--log-level=trace", "use one of debug, info, warn, error"},
		{"--http-prot=80", "unknown flag: --http-prot"}, {"run", `unexpected argument "run"; use flags only`},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(strings.Fields(c.args), nowhere, &stdout, &stderr); code != caddy.ExitCodeFailedStartup || stdout.Len() > 0 || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%s: exit code %d, %q; want %d, %q", c.args, code, stderr.String(), caddy.ExitCodeFailedStartup, c.want)
		}
	}
}

func TestHelpAndVersion(t *testing.T) {
	for args, want := range map[string]string{"--help": "--trusted-proxies CIDRs", "-h": "POD_NAMESPACE", "--version": "shield-ingress "} {
		var stdout, stderr bytes.Buffer
		if code := run([]string{args}, nowhere, &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), want) || stderr.Len() > 0 {
			t.Errorf("%s: exit code %d, %q, %q", args, code, stdout.String(), stderr.String())
		}
	}
}

// All flags are in the reference, with their defaults.
func TestFlagsInDocs(t *testing.T) {
	_, table, _ := strings.Cut(must.Read(t, "../../../docs/kubernetes/reference.md"), "\n## Flags\n")
	table, _, _ = strings.Cut(table, "\n## ")
	rows := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `--([a-z0-9-]+)` \\|([^|]*)\\|").FindAllStringSubmatch(table, -1) {
		rows[m[1]] = strings.Trim(m[2], "` ")
	}
	inText := regexp.MustCompile(`\(default ([^ )]+)\)$`)
	must.Get(parse(nil, nowhere))(t).flags.VisitAll(func(f *pflag.Flag) {
		is, want := rows[f.Name], f.DefValue
		if m := inText.FindStringSubmatch(f.Usage); m != nil {
			want = m[1]
		}
		if _, found := rows[f.Name]; !found || is != want && !slices.Contains([]string{"", "false", "[]"}, want) {
			t.Errorf("--%s: the table has the default %q; want %q", f.Name, is, want)
		}
		delete(rows, f.Name)
	})
	if len(rows) > 0 {
		t.Errorf("there are no flags %v", rows)
	}
}

func TestPortInUse(t *testing.T) {
	l := must.Get(net.Listen("tcp", ":0"))(t)
	defer l.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, os.WriteFile(kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: x}}], clusters: [{name: x, cluster: {server: "http://127.0.0.1:1"}}]}`), 0o600))
	ports := must.FreePorts(t, 2)
	cmd := exec.Command(os.Args[0], strings.Fields(fmt.Sprintf("--http-port=%d --https-port=%d --status-port=%d --kubeconfig=%s --shutdown-delay=0s", // Caddy delays for listeners that are up, too
		l.Addr().(*net.TCPAddr).Port, ports[0], ports[1], kubeconfig))...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != caddy.ExitCodeFailedStartup || !bytes.Contains(out, []byte("address already in use")) {
		t.Errorf("exit code %d, want %d, and why:\n%s", code, caddy.ExitCodeFailedStartup, out)
	}
}

// Without files of certificates, as in the image, the program has those of Mozilla.
func TestRootsWithoutFiles(t *testing.T) {
	const without = "SHIELD_TEST_NO_CERTIFICATES"
	if os.Getenv(without) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRootsWithoutFiles$", "-test.v")
		cmd.Env = append(os.Environ(), without+"=1", "SSL_CERT_FILE="+os.DevNull, "SSL_CERT_DIR="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: TestRootsWithoutFiles")) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if roots, err := x509.SystemCertPool(); err != nil || roots.Equal(x509.NewCertPool()) {
		t.Errorf("there are no certificates: %v", err)
	}
}
