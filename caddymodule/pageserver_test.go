package caddymodule

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

// TestPageServer has the page at an address of its own: for browsers that are given the address, for itself,
// and for programs. A request that a page of another site has a browser send is rejected, for every path, and
// Caddy's config is not there.
func TestPageServer(t *testing.T) {
	page := freeAddr(t)
	with := func(page string) setup {
		return setup{apps: `"shield": {"page": "` + page + `"},`, handlers: overQuota("") + "," + respondOK}
	}
	r := start(t, with(page))
	ask := func(method, path, body string, headers ...string) (status int, text string) {
		req, err := http.NewRequest(method, "http://"+page+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			if req.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
				req.Host = headers[i+1]
			}
		}
		resp, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if path == "/shield/live?follow=1" {
			return resp.StatusCode, ""
		}
		all, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(all)
	}
	_, port, _ := strings.Cut(page, ":")
	const block = `{"kind": "block", "client": "192.0.2.1", "for": "1m"}`
	typed := []string{"Accept", "text/html", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Site", "none"}
	own := []string{"Sec-Fetch-Mode", "cors", "Sec-Fetch-Site", "same-origin"}
	foreign := []string{"Accept", "text/html", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Site", "cross-site"}
	json := []string{"Content-Type", "application/json"}
	for _, c := range []struct {
		method, path, body string
		headers            []string
		status             int
		text               string
	}{
		{"GET", "/shield/", "", typed, 200, "<!DOCTYPE html>"},
		{"GET", "/shield/", "", append(typed, "Host", "localhost:"+port), 200, "<!DOCTYPE html>"},
		{"GET", "/shield/", "", nil, 200, `{"page":"` + page + `","read_only":false,"shields":[{"name":"s"`},
		{"GET", "/shield/live?follow=1", "", own, 200, ""},
		{"GET", "/shield/who", "", own, 200, `"window_seconds":60`},
		{"GET", "/shield/who", "", typed, 200, `"window_seconds":60`},
		{"GET", "/metrics", "", nil, 200, "caddy_shield_requests_total"},
		{"GET", "/debug/pprof/heap?debug=1", "", nil, 200, "heap profile"},
		{"POST", "/shield/overrides", block, append(own, append(json, "Origin", "http://"+page)...), 201, "192.0.2.1"},
		{"POST", "/shield/overrides", block, json, 201, "192.0.2.1"},

		{"GET", "/shield/", "", foreign, 403, "comes from another site"},
		{"GET", "/shield/", "", append(foreign[:4:4], "Sec-Fetch-Site", "same-site"), 403, "comes from another site"},
		{"GET", "/shield/", "", append(typed, "Host", "attacker.example:"+port), 403, "host is"},
		{"GET", "/shield/live?follow=1", "", foreign, 403, ""},
		{"GET", "/debug/pprof/profile?seconds=30", "", foreign, 403, "comes from another site"},
		{"GET", "/metrics", "", foreign, 403, "comes from another site"},
		{"POST", "/shield/overrides", block, append(json, "Origin", "file://"), 403, "origin is"},
		{"POST", "/shield/overrides", block, append(json, "Origin", "null"), 403, "origin is"},
		{"POST", "/shield/overrides", block, append(json, "Origin", "http://evil.example"), 403, "origin is"},
		{"POST", "/shield/overrides", block, append(json, foreign...), 403, "comes from another site"},
		{"POST", "/load", "{}", json, 404, ""},
		{"GET", "/config/", "", nil, 404, ""},
	} {
		if status, text := ask(c.method, c.path, c.body, c.headers...); status != c.status || !strings.Contains(text, c.text) {
			t.Errorf("%s %s with %q: %d %.300s, want %d and %q", c.method, c.path, c.headers, status, text, c.status, c.text)
		}
	}

	// At all addresses, a new client's name that leads to this machine is none either.
	_, other, _ := strings.Cut(freeAddr(t), ":")
	r.load(with(":" + other))
	before := page
	page = "127.0.0.1:" + other
	for host, want := range map[string]int{"attacker.example:" + other: 403, "localhost:" + other: 201, "127.0.0.1:" + other: 201} {
		if status, text := ask("POST", "/shield/overrides", block, append(json, "Host", host, "Origin", "http://"+host)...); status != want {
			t.Errorf("host %s: %d %s, want %d", host, status, text, want)
		}
	}
	page = before

	// A reload keeps the address; a config without it frees it, and one whose address is no good changes nothing.
	r.load(with(page))
	if err := r.tryLoad(with("localhost:1-9")); err == nil || !strings.Contains(err.Error(), "use one address, like localhost:2020") {
		t.Errorf("several ports: %v", err)
	}
	if status, _ := ask("GET", "/shield/who", ""); status != http.StatusOK {
		t.Errorf("after a reload and one that failed: %d", status)
	}
	r.load(setup{handlers: overQuota("") + "," + respondOK})
	eventually(t, "the address is free", func() bool { return caddy.ListenerUsage("tcp", page) == 0 })
}
