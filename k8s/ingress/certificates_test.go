package ingress

import (
	"crypto/tls"
	"net/http"
	"testing"
	"time"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
)

// The self-signed certificate is one, until a third of its time is left.
func TestSelfSignedIsRenewed(t *testing.T) {
	var o selfSignedCertificate
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	first := o.get(now)
	if d := first.Leaf.NotAfter.Sub(now); d != selfSignedFor {
		t.Errorf("valid for %v, want %v", d, selfSignedFor)
	}
	if o.get(now.Add(selfSignedFor-selfSignedRenews-time.Second)) != first {
		t.Error("made again before its time")
	}
	if o.get(now.Add(selfSignedFor-selfSignedRenews)) == first {
		t.Error("not made again when a third of its time is left")
	}
}

// Every handshake gets a certificate, with any server name and without one.
func TestHandshakes(t *testing.T) {
	later, past := time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
	p := newPod(t, "red", start)
	models := func(cn string) *model.Model {
		m := all(origin("web", policy.Ingress{}), backend(service("web", policy.Service{}), p))
		entry := func(cn string, until time.Time, hosts ...string) model.Certificate {
			return model.Certificate{Hosts: hosts, Certificate: must.Certificate(t, cn, until, hosts...)}
		}
		m.Certificates = []model.Certificate{
			entry("expired", past, "a.example.com"), entry(cn, later, "a.example.com"), entry("second", later, "a.example.com", "b.example.com"),
			entry("wildcard", later, "*.example.com"), entry("old", past, "old.example.com"), entry("gone", past, "gone.com"),
			{Hosts: []string{"nameless.com"}, Certificate: must.Certificate(t, "", later)}, {Hosts: []string{"nothing.com"}},
			{Hosts: []string{"broken.com"}, Certificate: &tls.Certificate{Certificate: [][]byte{{1}}, PrivateKey: 1}},
		}
		return m
	}
	w := newWorld(t, models("exact"))
	const own = "Shield Ingress Controller Fake Certificate"
	handshake := func(name string, change func(*tls.Config)) (tls.ConnectionState, error) {
		config := &tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}}
		if change != nil {
			change(config)
		}
		conn, err := tls.Dial("tcp", w.secure, config)
		if err != nil {
			return tls.ConnectionState{}, err
		}
		defer conn.Close()
		return conn.ConnectionState(), nil
	}
	for name, want := range map[string]string{
		"a.example.com": "exact", "A.EXAMPLE.com": "exact", // the first that has not expired
		"b.example.com": "second", "a_b.example.com": "wildcard", "old.example.com": "wildcard", // better than one that no client accepts
		"gone.com": own, "nameless.com": own, "nothing.com": own, "broken.com": own, "example.com": own, "c.example.com": "wildcard",
		"x--y.example.com": "wildcard", "b.c.example.com": own, "unknown.example.org": own, "localhost": own, "-bad-.example.org": own,
		"xn--zzzzzz99999.org": own, "*.example.org": own, "": own,
	} {
		state, err := handshake(name, nil)
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		if got := state.PeerCertificates[0].Subject.CommonName; got != want {
			t.Errorf("certificate for %q = %q, want %q", name, got, want)
		}
		if state.NegotiatedProtocol != "h2" {
			t.Errorf("%q: protocol %q, want h2", name, state.NegotiatedProtocol)
		}
	}
	if _, err := handshake("a.example.com", func(c *tls.Config) { c.NextProtos = []string{"acme-tls/1"} }); err == nil {
		t.Error("the TLS-ALPN challenge is spoken here")
	}
	for version, ok := range map[uint16]bool{tls.VersionTLS10: false, tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		if _, err := handshake("a.example.com", func(c *tls.Config) { c.MinVersion, c.MaxVersion = version, version }); (err == nil) != ok {
			t.Errorf("%s: %v", tls.VersionName(version), err)
		}
	}
	if state, err := handshake("a.example.com", func(c *tls.Config) { c.NextProtos = nil }); err != nil || state.NegotiatedProtocol != "" {
		t.Errorf("without ALPN: %q, %v", state.NegotiatedProtocol, err)
	}

	// The next handshake after a change sees it; no config has changed.
	m := models("rotated")
	m.DefaultCertificate = must.Certificate(t, "default", later)
	w.apply(m)
	for name, want := range map[string]string{"a.example.com": "rotated", "gone.com": "default"} {
		if state, err := handshake(name, nil); err != nil || state.PeerCertificates[0].Subject.CommonName != want {
			t.Errorf("after a rotation, %s: %v; want %s", name, err, want)
		}
	}

	// Requests are served over both.
	for _, h2 := range []bool{true, false} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "a.example.com"}, ForceAttemptHTTP2: h2}
		resp := must.Get((&http.Client{Transport: transport}).Get("https://" + w.secure + "/"))(t)
		_ = resp.Body.Close()
		if transport.CloseIdleConnections(); resp.StatusCode != 200 || resp.ProtoMajor == 2 != h2 {
			t.Errorf("status %d over %s", resp.StatusCode, resp.Proto)
		}
	}
}
