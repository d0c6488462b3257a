package caddymodule

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

// Behind a proxy that appends the sender to X-Forwarded-For, a client that sends one itself
// has a bucket for each address that it makes up, unless Caddy reads the header strictly.
// Where clients can choose their key, there is one warning when the config is loaded.
func TestTrustedProxies(t *testing.T) {
	const burst, requests = 5, 30
	const address, header = "clients can choose the address", "clients can choose the header"
	for _, c := range []struct {
		name, servers, key string
		admitted           int
		warning            string // how it begins
	}{
		{"strict", "trusted_proxies static 127.0.0.0/8\n trusted_proxies_strict", "{client_ip}", burst, ""},
		{"not strict", "trusted_proxies static 127.0.0.0/8", "{client_ip}", requests, address},
		{"no proxy is trusted", "protocols h1", "{client_ip}", burst, ""},
		{"proxies on Unix sockets", "trusted_proxies_unix", "{client_ip}", burst, address},
		{"the address of the proxy", "trusted_proxies static 127.0.0.0/8", "{remote_host}", burst, ""},
		{"the header of addresses", "protocols h1", "{header.X-Forwarded-For}", requests, header},
		{"the one that is named so", "client_ip_headers x-real-ip", "{header.X-Real-IP}", burst, header},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "shield.log")
			limited := strings.ReplaceAll(`shield {
				zone z {
					key KEY
					rate 1/h
					burst 5
				}
				retries {
					key KEY
				}
			}
			respond ok`, "KEY", c.key)
			s := serveSite(t, fmt.Sprintf("{ %s\n log shield {\n output file %s\n include shield\n }\n servers {\n %s\n }\n}\n", globalOptions, file, c.servers)+
				bound+"handle /a {\n"+limited+"\n}\n handle {\n"+limited+"\n}\n}")
			admitted := 0
			for i := range requests {
				if s.getFrom("127.0.0.1", "/", "X-Forwarded-For", fmt.Sprintf("198.51.100.%d, 192.0.2.1", i)).StatusCode == http.StatusOK {
					admitted++
				}
			}
			_ = caddy.Stop() // closes the log
			warnings := ""
			for _, entry := range logEntries(t, file) {
				if entry["level"] == "warn" && entry["server"] == "srv0" && entry["key"] != nil {
					warnings += entry["msg"].(string)
				}
			}
			t.Logf("%d of %d admitted, warnings: %q", admitted, requests, warnings)
			if admitted != c.admitted || !strings.HasPrefix(warnings, c.warning) || strings.Count(warnings, "clients") > 1 || c.warning == "" && warnings != "" {
				t.Errorf("want %d admitted, and %q once", c.admitted, c.warning)
			}
		})
	}
}
