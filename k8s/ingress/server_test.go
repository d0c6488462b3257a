package ingress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/caddyserver/certmagic"

	"github.com/herdshield/shield/k8s/testbed/must"
)

func init() {
	caddy.RegisterModule(new(edgeHandler))
	caddy.RegisterModule(new(edgeManager))
	caddy.RegisterModule(new(edgeListener))
	caddy.RegisterModule(new(edgeIssuer))
}

// edge has the behaviour of the modules below, which Caddy creates.
var edge struct {
	certificate atomic.Pointer[func(serverName string) *tls.Certificate]
	backend     string
	issued      atomic.Int64
}

// edgeManager is a CertificateManager without a cluster.
type edgeManager struct{}

func (*edgeManager) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "tls.get_certificate.edge", New: func() caddy.Module {
		return &CertificateManager{find: edgeCertificate}
	}}
}

func edgeCertificate(name string) *tls.Certificate { return (*edge.certificate.Load())(name) }

// edgeListener is a CertificateListener without a cluster.
type edgeListener struct{}

func (*edgeListener) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.listeners.edge", New: func() caddy.Module {
		return &CertificateListener{find: edgeCertificate}
	}}
}

// edgeIssuer counts how often Caddy wants to obtain a certificate.
type edgeIssuer struct{}

func (*edgeIssuer) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "tls.issuance.edge", New: func() caddy.Module { return new(edgeIssuer) }}
}
func (*edgeIssuer) IssuerKey() string { return "edge" }
func (*edgeIssuer) Issue(context.Context, *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	edge.issued.Add(1)
	return nil, errors.New("this test issues nothing")
}

// edgeHandler passes requests to edge.backend as Handler passes them to endpoints.
type edgeHandler struct{ proxy *reverseproxy.Handler }

func (*edgeHandler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.edge", New: func() caddy.Module { return new(edgeHandler) }}
}

func (h *edgeHandler) Provision(ctx caddy.Context) error {
	proxy, err := ctx.LoadModuleByID("http.handlers.reverse_proxy", encode(map[string]any{
		"upstreams": []any{map[string]string{"dial": edge.backend}},
	}))
	if err != nil {
		return err
	}
	h.proxy = proxy.(*reverseproxy.Handler)
	h.proxy.Transport = viaTransport{h.proxy.Transport}
	return nil
}

func (h *edgeHandler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if edge.backend == "none:1" {
		_, err := io.WriteString(w, r.Proto)
		return err
	}
	forward(r)
	return h.proxy.ServeHTTP(&viaWriter{ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w}}, r, next)
}

// startEdge runs the config of o, with the modules above in place of those that need
// a cluster, and without probes. replace are pairs of what is in it, and what is to be
// there instead. It returns the addresses for HTTP and HTTPS.
func startEdge(t *testing.T, o Options, replace ...string) (plain, secure string) {
	t.Helper()
	ports := must.FreePorts(t, 3)
	o.HTTPPort, o.HTTPSPort, o.StatusPort = ports[0], ports[1], ports[2]
	o.address, o.ShutdownDelay, o.LogLevel = "127.0.0.1", 0, "ERROR"
	if edge.backend == "" {
		edge.backend = "none:1"
	}
	t.Cleanup(func() { edge.backend = "" })
	raw := must.Get(Config(o))(t)
	replace = append([]string{
		`"via":"shield_ingress"`, `"via":"edge"`,
		`"wrapper":"shield_ingress"`, `"wrapper":"edge"`,
		`"handler":"shield_ingress"`, `"handler":"edge"`,
		`"on_demand":true`, `"on_demand":true,"issuers":[{"module":"edge"}]`,
	}, replace...)
	for pair := range slices.Chunk(replace, 2) {
		if !bytes.Contains(raw, []byte(pair[0])) {
			t.Fatalf("%s is not in the config: %s", pair[0], raw)
		}
		raw = bytes.ReplaceAll(raw, []byte(pair[0]), []byte(pair[1]))
	}
	var config map[string]any
	must.Do(t, json.Unmarshal(raw, &config))
	apps := config["apps"].(map[string]any)
	delete(apps, "shield_ingress")
	delete(apps["http"].(map[string]any)["servers"].(map[string]any), "status")
	must.Do(t, caddy.Load(encode(config), true))
	t.Cleanup(func() { _ = caddy.Stop() })
	return fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])
}

// The config of each set of options is one that Caddy takes, as far as it can be known without a cluster.
func TestConfigIsStrictJSON(t *testing.T) {
	o := DefaultOptions()
	o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	o.ProxyProtocolFrom = []netip.Prefix{netip.MustParsePrefix("fd00::/8")}
	o.AccessLog = true
	raw := must.Get(Config(o))(t)
	var c caddy.Config
	must.Do(t, caddy.StrictUnmarshalJSON(raw, &c))
	var h caddyhttp.App
	must.Do(t, caddy.StrictUnmarshalJSON(c.AppsRaw["http"], &h))
	if !c.Admin.Disabled || *c.Admin.Config.Persist {
		t.Error("the admin endpoint is there, or the config is saved")
	}
	if c.Logging.Logs["access"] == nil {
		t.Error("no access log")
	}
	for _, name := range []string{"http", "https"} {
		s := h.Servers[name]
		if s.ReadTimeout != 0 || s.WriteTimeout != 0 {
			t.Errorf("%s: bodies have to be there in time", name)
		}
		if s.TrustedProxiesStrict != 1 || len(s.TrustedProxiesRaw) == 0 || len(s.ListenerWrappersRaw) < 2 || s.Logs == nil || !s.AutoHTTPS.Disabled {
			t.Errorf("%s is not as asked for: %s", name, c.AppsRaw["http"])
		}
		for _, p := range s.Protocols {
			if p == "h3" {
				t.Errorf("%s speaks HTTP/3", name)
			}
		}
	}
	if s := h.Servers["status"]; s.TrustedProxiesRaw != nil || s.ListenerWrappersRaw != nil || s.Logs != nil {
		t.Error("probes are treated as clients")
	}

	raw = mustConfig(t, DefaultOptions())
	const door = `{"wrapper":"shield"}`
	if n := bytes.Count(raw, []byte(`"listener_wrappers":[`+door)); n != 2 {
		t.Errorf("%d servers refuse at the door by default, want 2: %s", n, raw)
	}
	for _, logs := range []bool{false, true} { // which are to have all requests
		if o.AccessLog = logs; logs == strings.Contains(string(mustConfig(t, o)), `{"wrapper":"tls"},`+door) {
			t.Errorf("access logs %v: %s", logs, mustConfig(t, o))
		}
	}
	for _, no := range []string{"trusted_proxies", "proxy_protocol", "http.log.access", "issuers"} {
		if bytes.Contains(raw, []byte(no)) {
			t.Errorf("%s by default: %s", no, raw)
		}
	}
}

// Logs that reverse_proxy has loggers of do not encode each request.
func TestLogsAreCheap(t *testing.T) {
	o := DefaultOptions()
	for name, log := range o.logging().Logs {
		if got := string(log.EncoderRaw); got != `{"format":"shield"}` {
			t.Errorf("the encoder of %s is %s", name, got)
		}
	}
}

func mustConfig(t *testing.T, o Options) []byte {
	t.Helper()
	return must.Get(Config(o))(t)
}

func TestConfigSaysAllThatIsWrong(t *testing.T) {
	o := DefaultOptions()
	o.HTTPPort, o.HTTPSPort, o.StatusPort = 0, 70000, 70000
	o.ShutdownDelay, o.GracePeriod = -time.Second, 0
	o.LogLevel = "loud"
	o.TrustedProxies = make([]netip.Prefix, 1)
	_, err := Config(o)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"HTTP port is 0", "HTTPS port is 70000", "shutdown delay is -1s", "grace period is 0s", `log level is "loud"`, "trusted proxies is not a valid CIDR"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	o = DefaultOptions()
	o.StatusPort = o.HTTPPort
	if _, err = Config(o); err == nil || !strings.Contains(err.Error(), "the HTTP port and the status port are both 8080") {
		t.Errorf("error = %v", err)
	}
}

// With the PROXY protocol the load balancer names the client, with and without TLS; other peers cannot.
func TestProxyProtocol(t *testing.T) {
	backend := dumpBackend(t)
	for _, c := range []struct {
		name, from, header, want string
	}{
		{"from the load balancer", "127.0.0.0/8", "PROXY TCP4 192.0.2.7 127.0.0.1 40000 80\r\n", "192.0.2.7"},
		{"from it, without", "127.0.0.0/8", "", "127.0.0.1"},
		{"from elsewhere", "10.0.0.0/8", "PROXY TCP4 192.0.2.7 127.0.0.1 40000 80\r\n", ""},
		{"from elsewhere, without", "10.0.0.0/8", "", "127.0.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := DefaultOptions()
			o.ProxyProtocolFrom = []netip.Prefix{netip.MustParsePrefix(c.from)}
			edge.backend = backend
			useCertificates(newCertificates(nil, nil))
			plain, secure := startEdge(t, o)
			for _, over := range []string{plain, secure} {
				conn := must.Get(net.Dial("tcp", over))(t)
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				_, _ = io.WriteString(conn, c.header)
				var rw io.ReadWriter = conn
				if over == secure {
					rw = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
				}
				_, err := io.WriteString(rw, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
				var status int
				var got http.Header
				if err == nil {
					var resp *http.Response
					if resp, err = http.ReadResponse(bufio.NewReader(rw), nil); err == nil {
						status = resp.StatusCode
						_ = json.NewDecoder(resp.Body).Decode(&got)
					}
				}
				switch {
				case c.want == "" && over == secure && err == nil:
					t.Errorf("%s: TLS began with a PROXY header", over)
				case c.want == "" && over == plain && status != http.StatusBadRequest:
					t.Errorf("%s: status %d, error %v; want 400", over, status, err)
				case c.want != "" && got.Get("X-Real-Ip") != c.want:
					t.Errorf("%s: client = %q, error %v; want %q", over, got.Get("X-Real-Ip"), err, c.want)
				}
			}
		})
	}
}
