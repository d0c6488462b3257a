package caddymodule

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/oncall"
)

const watched = `{"handler": "shield", "name": "shop", "capacity": {"rate": 5, "burst": 5}, "concurrency": {"adaptive": true},
	"classes": [{"name": "critical", "match": [{"path": ["/pay"]}]}]}, {"handler": "static_response", "body": "ok"}`

func watchOf(t *testing.T, query string) (w adminapi.Watch) {
	t.Helper()
	if status, body := administer(t, httptest.NewRequest(http.MethodGet, "/shield/live?"+query, nil)); json.Unmarshal([]byte(body), &w) != nil {
		t.Fatalf("%s: %d %s", query, status, body)
	}
	return w
}

// sumOf adds the seconds of a column.
func sumOf(s oncall.Samples, column string) (n int) {
	for _, v := range s.Columns[column] {
		n += int(v)
	}
	return n
}

// The endpoint tells what happened in each second, survives reloads, and sends only what is new.
func TestLive(t *testing.T) {
	r := start(t, setup{handlers: watched})
	r.app().stopReports()
	r.get("/pay")
	for range 9 {
		r.get("/")
	}
	now := shield.Now()
	seq := oncall.Second(now)
	second := func(n time.Duration) { r.app().reportOnce(now + n*time.Second) }
	second(0) // which counts what there was so far, at whatever time within a second it is
	second(1)
	w := watchOf(t, "")
	if w.Boot == "" || w.Seq != seq+1 || len(w.Shields) != 1 || time.Since(time.UnixMilli(w.Now)).Abs() > 10*time.Second {
		t.Fatalf("%+v after second %d", w, seq)
	}
	s, samples := w.Shields[0], w.Samples["shop"]
	if sumOf(samples, "admitted") < 5 || sumOf(samples, "rejected.capacity")+sumOf(samples, "rejected.early") == 0 || sumOf(samples, "class.critical.admitted") != 1 {
		t.Errorf("columns %v", samples.Columns)
	}
	if s.Name != "shop" || s.Search.By != "adaptive" || s.Capacity.Rate != 5 || len(s.Classes) != 3 || s.Level == oncall.Good ||
		!strings.HasPrefix(s.Says, "shop is rejecting ") || !strings.Contains(s.Says, "capacity of 5/s is used up") || s.Waiting == nil {
		t.Errorf("the shield is %+v", s)
	}
	if events := samples.Events; len(events) < 2 || events[0].Text != "config loaded" || !strings.HasPrefix(events[1].Text, "overload started: capacity ") {
		t.Errorf("events %+v", events)
	}
	r.load(setup{handlers: strings.Replace(watched, `"rate": 5`, `"rate": 6`, 1)})
	r.app().stopReports()
	second(2)
	again := watchOf(t, fmt.Sprintf("since=%d&boot=%s&shield=shop", w.Seq, w.Boot))
	if s, samples := again.Shields[0], again.Samples["shop"]; s.Capacity.Rate != 6 || samples.From != w.Seq || samples.Count > 4 {
		t.Errorf("after a reload: %+v, %+v", s, samples)
	}
	if all := watchOf(t, fmt.Sprintf("since=%d&boot=another", w.Seq)).Samples["shop"]; all.From != samples.From || sumOf(all, "admitted") < 5 {
		t.Errorf("a page of another process gets %+v", all)
	}
}

// The clients of a backlog are those that have an appointment, not as many as would have room until
// its end.
func TestWaitingIsCounted(t *testing.T) {
	s := serveSite(t, "{"+globalOptions+"}\n"+bound+"shield {\nname shop\ncapacity 1/s burst 1\nretries {\nkey {header.X-Client}\n}\npushback {\ndither off\n}\n}\nrespond ok\n}\n")
	for client := range 8 {
		s.get("/", "X-Client", fmt.Sprint("c", client))
	}
	for left, client := range []string{"c2", "c3", "c4", "c1", "c6", "c5", "c7"} { // the last one is at the end
		if w := watchOf(t, "").Shields[0]; w.Waiting == nil || w.Waiting.Clients != float64(7-left) || left == 6 && !strings.Contains(w.Says, "the last rejected client is due back in ") {
			t.Errorf("%+v wait; want %v clients: %s", w.Waiting, 7-left, w.Says)
		}
		forgive(t, client, "")
	}
	if w := watchOf(t, "").Shields[0]; w.Waiting != nil && w.Waiting.Clients != 0 {
		t.Errorf("%+v wait at the end", w.Waiting)
	}
}

// Who watches by one request is told who is rejected and what is in force, too, as by the other endpoints. Certificates of
// remote administration may not read those by it, as they have rights by path.
func TestLiveTellsAll(t *testing.T) {
	r := start(t, setup{handlers: watched})
	for range 9 {
		r.get("/")
	}
	demand(t, `{"kind": "set", "shield": "shop", "setting": "capacity", "value": "4/s burst 4", "for": "1h"}`)
	status, body := administer(t, locally("GET", "/shield/live?all=1&since=9007199254740991&shield=shop", ""))
	var w adminapi.Watch
	if err := json.Unmarshal([]byte(body), &w); err != nil {
		t.Fatalf("%d %s", status, body)
	}
	if w.Who == nil || len(w.Who.Shields) != 1 || len(w.Who.Shields[0].Rejected) != 1 || w.Who.Shields[0].Rejected[0].Client != "127.0.0.1" {
		t.Errorf("who: %+v", w.Who)
	}
	if is, n := w.Overrides, w.Samples["shop"].Count; w.ReadOnly || len(is) != 1 || is[0].Value != "4/s burst 4" || len(w.Shields[0].Settings) == 0 || n > 0 {
		t.Errorf("overrides: %+v, and %d seconds; want one, and none", is, n)
	}
	remote := httptest.NewRequest(http.MethodGet, "/shield/live?all=1", nil)
	remote.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{new(x509.Certificate)}}
	if status, body := administer(t, remote); status != http.StatusOK || strings.Contains(body, `"who":{`) || strings.Contains(body, `"overrides":[`) {
		t.Errorf("%d; a certificate reads %s", status, body)
	}
}

// Browsers get a page that runs its own script and no other; programs get JSON.
func TestPageForBrowsers(t *testing.T) {
	start(t, setup{handlers: watched})
	var page *httptest.ResponseRecorder
	for accept, kind := range map[string]string{
		"": "application/json", "*/*": "application/json", "application/json": "application/json", "application/json, text/html": "application/json",
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": "text/html; charset=utf-8",
	} {
		rec, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/shield/", nil)
		r.Header.Set("Accept", accept)
		if err := serve(rec, r); err != nil || rec.Header().Get("Content-Type") != kind || rec.Header().Get("Vary") != "Accept" {
			t.Errorf("Accept: %s: %v, %v; want %s", accept, err, rec.Header(), kind)
		}
		if strings.HasPrefix(kind, "text/html") {
			page = rec
		}
	}
	policy, html := page.Header().Get("Content-Security-Policy"), page.Body.String()
	wants := []string{"default-src 'none'; ", "connect-src 'self'", "img-src data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"}
	for tag, of := range map[string]string{"script": "script-src", "style": "style-src"} {
		all := regexp.MustCompile(`(?s)<`+tag+`[^>]*>(.*?)</`+tag+`>`).FindAllStringSubmatch(html, -1)
		if len(all) != 1 {
			t.Fatalf("%d elements %s; want 1", len(all), tag)
		}
		sum := sha256.Sum256([]byte(all[0][1]))
		wants = append(wants, of+" 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
	}
	for _, want := range wants {
		if !strings.Contains(policy, want) || strings.Contains(policy, "unsafe") {
			t.Errorf("no %s in the policy %s, or something unsafe", want, policy)
		}
	}
	for _, not := range []string{`style="`, "onclick=", "onload=", "who?", "overrides?", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "https://", "//cdn"} {
		if strings.Contains(html, not) {
			t.Errorf("the page has %s", not)
		}
	}
	if got, _ := oncall.Page(); len(html) < 10_000 || string(got) != html {
		t.Errorf("the page has %d bytes", len(html))
	}
}
