package caddymodule

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
)

// clientCertificate makes a certificate of a client, which signs itself.
func clientCertificate(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	is := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, is, is, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// A remoteAdmin is a Caddy with a remote admin endpoint, as a client with a certificate sees it.
type remoteAdmin struct {
	*testing.T
	url    string
	client *http.Client
}

// as returns the endpoint as the client of a certificate sees it; without one if it is empty.
func (a remoteAdmin) as(certificates ...tls.Certificate) remoteAdmin {
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		ServerName: "localhost", Certificates: certificates,
		InsecureSkipVerify: true, // its certificate is of a new authority
	}}
	a.Cleanup(transport.CloseIdleConnections)
	a.client = &http.Client{Transport: transport}
	return a
}

// ask sends a request with headers given as name, value, name, value.
func (a remoteAdmin) ask(method, path, body string, headers ...string) (*http.Response, string, error) {
	r, err := http.NewRequestWithContext(a.Context(), method, a.url+path, strings.NewReader(body))
	if err != nil {
		a.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := a.client.Do(r)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	return resp, string(said), err
}

// wants checks the status of an answer, and that a text is in it.
func (a remoteAdmin) wants(status int, text, method, path, body string, headers ...string) {
	a.Helper()
	resp, said, err := a.ask(method, path, body, headers...)
	if err != nil || resp.StatusCode != status || !strings.Contains(said, text) {
		if len(said) > 300 {
			said = said[:300]
		}
		a.Errorf("%s %s: %v, %+v %s; want %d with %q", method, path, err, resp, said, status, text)
	}
}

// Over Caddy's remote administration a certificate may do what Caddy's access control says: read, or
// change something, too. Without a certificate there is no connection.
func TestRemoteAdministration(t *testing.T) {
	storage := caddy.DefaultStorage.Path // of the identity, whatever the config says
	caddy.DefaultStorage.Path = t.TempDir()
	t.Cleanup(func() { caddy.DefaultStorage.Path = storage })
	reader, writer, stranger := clientCertificate(t, "reader"), clientCertificate(t, "writer"), clientCertificate(t, "stranger")
	text := func(c tls.Certificate) string { return base64.StdEncoding.EncodeToString(c.Certificate[0]) }
	address := freeAddr(t)
	var config map[string]any
	if err := json.Unmarshal(setup{handlers: watched, apps: `"pki": {"certificate_authorities": {"local": {"install_trust": false}}},`}.json(freeAddr(t)), &config); err != nil {
		t.Fatal(err)
	}
	var admin any
	if err := json.Unmarshal(fmt.Appendf(nil, `{
		"listen": %q, "config": {"persist": false},
		"identity": {"identifiers": ["localhost"], "issuers": [{"module": "internal"}]},
		"remote": {"listen": %q, "access_control": [
			{"public_keys": [%q], "permissions": [{"paths": ["/shield/"], "methods": ["GET"]}]},
			{"public_keys": [%q], "permissions": [{"paths": ["/shield/"], "methods": ["GET", "POST", "DELETE"]}]}
		]}
	}`, freeAddr(t), address, text(reader), text(writer)), &admin); err != nil {
		t.Fatal(err)
	}
	config["admin"] = admin
	loaded, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = caddy.Stop() })
	if err := caddy.Load(loaded, true); err != nil {
		t.Fatal(err)
	}
	all := remoteAdmin{T: t, url: "https://" + address}
	read, write := all.as(reader), all.as(writer)
	eventually(t, "Caddy has a certificate", func() bool { _, _, err := read.ask("GET", "/shield/", ""); return err == nil })

	// One that may read.
	read.wants(200, `"name":"shop"`, "GET", "/shield/", "")
	read.wants(200, "<!DOCTYPE html>", "GET", "/shield/", "", "Accept", "text/html")
	read.wants(200, `"shields":[{"name":"shop"`, "GET", "/shield/live", "")
	read.wants(200, `"window_seconds":60`, "GET", "/shield/who", "")
	read.wants(200, `"would":"admit"`, "GET", "/shield/explain?client=192.0.2.1", "")
	for range 2 {
		read.wants(200, `"read_only":true`, "GET", "/shield/overrides", "")
	}
	const block = `{"kind": "block", "client": "192.0.2.1", "for": "1h"}`
	for _, c := range [][3]string{{"POST", "/shield/overrides", block}, {"POST", "/shield/forgive", `{"client": "192.0.2.1"}`}, {"DELETE", "/shield/overrides/1", ""}} {
		read.wants(403, "not authorized to use this method", c[0], c[1], c[2])
	}
	read.wants(403, "not authorized to access this path", "GET", "/config/", "")
	if list, _ := changes.read(shield.Now()); len(list) != 0 {
		t.Errorf("after changes that were refused, in force are %+v", list)
	}

	// One that may change something.
	write.wants(200, `"read_only":false`, "GET", "/shield/overrides", "")
	_, said, err := write.ask("POST", "/shield/overrides", block)
	var is adminapi.OverrideBegun
	if err != nil || json.Unmarshal([]byte(said), &is) != nil || !strings.Contains(is.By, `certificate "CN=writer"`) {
		t.Errorf("%v %s", err, said)
	}
	write.wants(200, `"blocked":true`, "POST", "/shield/forgive", `{"client": "192.0.2.1"}`)
	_, said, _ = write.ask("POST", "/shield/overrides", block)
	if err := json.Unmarshal([]byte(said), &is); err != nil {
		t.Error(err)
	}
	write.wants(204, "", "DELETE", "/shield/overrides/"+is.ID, "")
	write.wants(403, "not authorized to access this path", "POST", "/stop", "")
	read.wants(200, `"read_only":true`, "GET", "/shield/overrides", "") // whatever another may

	// Caddy refuses browsers there, even with a certificate.
	write.wants(403, "", "GET", "/shield/", "", "Accept", "text/html", "Sec-Fetch-Mode", "navigate")

	for name, is := range map[string]remoteAdmin{"without a certificate": all.as(), "with an unknown one": all.as(stranger)} {
		if resp, _, err := is.ask("GET", "/shield/", ""); err == nil {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
}

// Each certificate is tried once, and again after a reload. A bounded number is remembered.
func TestPermissionsAreRemembered(t *testing.T) {
	var p permissions
	asked := 0
	may := func(server *http.Server, name string) bool {
		return p.may(server, []byte(name), func() bool { asked++; return name == "writer" })
	}
	server := new(http.Server)
	for range 3 {
		if !may(server, "writer") || may(server, "reader") {
			t.Fatal("the writer may not, or the reader may")
		}
	}
	if asked != 2 {
		t.Errorf("asked %d times, want 2", asked)
	}
	if may(new(http.Server), "reader"); asked != 3 {
		t.Errorf("after a reload asked %d times, want 3", asked)
	}
	for i := range 10 * maxPermissions {
		may(server, fmt.Sprint(i))
	}
	if len(p.of) > maxPermissions {
		t.Errorf("%d certificates are remembered", len(p.of))
	}
}
