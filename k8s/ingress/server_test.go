package ingress

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield/k8s/testbed/must"
)

// What nobody may change or see is not in the config; fast reject is, unless the access log is to have all requests.
func TestConfig(t *testing.T) {
	o := DefaultOptions()
	config := func() string { return string(must.Get(Config(o))(t)) }
	raw := config()
	for _, no := range []string{"trusted_proxies", "proxy_protocol", "http.log.access", "issuers", `"h3"`, "read_timeout", "write_timeout"} {
		if strings.Contains(raw, no) {
			t.Errorf("%s by default: %s", no, raw)
		}
	}
	var c caddy.Config
	must.Do(t, caddy.StrictUnmarshalJSON([]byte(raw), &c))
	if !c.Admin.Disabled || *c.Admin.Config.Persist {
		t.Error("the admin endpoint is there, or the config is saved")
	}
	const door = `{"wrapper":"shield"}`
	o.ProxyProtocolFrom = []netip.Prefix{netip.MustParsePrefix("fd00::/8")}
	with := config()
	if o.AccessLog = true; strings.Count(raw, door) != 2 || !strings.Contains(with, `{"wrapper":"tls"},`+door) || strings.Contains(config(), door) || !strings.Contains(config(), accessLog) {
		t.Errorf("servers reject at the door: by default %s\nwith PROXY protocol %s\nwith access logs %s", raw, with, config())
	}
}

// With the PROXY protocol the load balancer names the client, with and without TLS; other peers cannot.
func TestProxyProtocol(t *testing.T) {
	m := dumping(t)
	for _, c := range []struct {
		name, from, header, want string
	}{
		{"from the load balancer", "127.0.0.0/8", "PROXY TCP4 192.0.2.7 127.0.0.1 40000 80\r\n", "192.0.2.7"},
		{"from it, without", "127.0.0.0/8", "", "127.0.0.1"},
		{"from elsewhere", "10.0.0.0/8", "PROXY TCP4 192.0.2.7 127.0.0.1 40000 80\r\n", ""},
		{"from elsewhere, without", "10.0.0.0/8", "", "127.0.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, m, func(o *Options) { o.ProxyProtocolFrom = []netip.Prefix{netip.MustParsePrefix(c.from)} })
			plain := strings.TrimPrefix(w.base, "http://")
			for _, over := range []string{plain, w.secure} {
				conn := must.Get(net.Dial("tcp", over))(t)
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				_, _ = io.WriteString(conn, c.header)
				var rw io.ReadWriter = conn
				if over == w.secure {
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
				case c.want == "" && over == w.secure && err == nil:
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
