package caddymodule

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/oncall"
)

const watched = `{"handler": "shield", "name": "shop", "capacity": {"rate": 5, "burst": 5}, "concurrency": {"adaptive": true},
	"classes": [{"name": "critical", "match": [{"path": ["/pay"]}]}]}, {"handler": "static_response", "body": "ok"}`

func watchOf(t *testing.T, query string) (w adminapi.Watch) {
	t.Helper()
	rec := httptest.NewRecorder()
	if err := serveLive(rec, httptest.NewRequest(http.MethodGet, "/shield/live?"+query, nil)); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &w); err != nil {
		t.Fatalf("%v: %s", err, rec.Body)
	}
	return w
}

// sumOf adds the seconds of a column.
func sumOf(s oncall.Samples, column string) (n int) {
	c := s.Columns[column]
	for i := range s.Count {
		switch {
		case len(c) == 1:
			n += int(c[0])
		case i < len(c):
			n += int(c[i])
		}
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
	seq, _ := clock.Now(now)
	second := func(n time.Duration) { r.app().reportOnce(now + n*time.Second) }
	second(0) // which counts what there was so far, at whatever time within a second it is
	second(1)
	w := watchOf(t, "")
	if w.Boot != boot || w.Seq <= seq || len(w.Shields) != 1 || time.Since(time.UnixMilli(w.Now)).Abs() > 10*time.Second {
		t.Fatalf("%+v after second %d", w, seq)
	}
	s := w.Shields[0]
	if sumOf(s.Samples, "admitted") < 5 || sumOf(s.Samples, "refused.capacity")+sumOf(s.Samples, "refused.early") == 0 || sumOf(s.Samples, "class.critical.admitted") != 1 {
		t.Errorf("columns %v", s.Samples.Columns)
	}
	if s.Name != "shop" || s.Limit != "adaptive" || s.Capacity.Rate != 5 || len(s.Classes) != 3 || s.Level == oncall.Good ||
		!strings.HasPrefix(s.Says, "shop refuses ") || !strings.Contains(s.Says, "capacity of 5/s is used up") || s.Waiting == nil {
		t.Errorf("the shield is %+v", s)
	}
	if events := s.Samples.Events; len(events) < 2 || events[0].Text != "a config is loaded" || events[1].Text != "refusing began" {
		t.Errorf("events %+v", events)
	}
	r.load(setup{handlers: strings.Replace(watched, `"rate": 5`, `"rate": 6`, 1)})
	r.app().stopReports()
	second(2)
	again := watchOf(t, fmt.Sprintf("since=%d&boot=%s&shield=shop", w.Seq, w.Boot))
	if s := again.Shields[0]; s.Capacity.Rate != 6 || s.Samples.From != w.Seq || s.Samples.Count > 4 {
		t.Errorf("after a reload: %+v", s)
	}
	if all := watchOf(t, fmt.Sprintf("since=%d&boot=another", w.Seq)).Shields[0].Samples; all.From != s.Samples.From || sumOf(all, "admitted") < 5 {
		t.Errorf("a page of another process gets %+v", all)
	}
	for query, want := range map[string]string{
		"since=x": `since is "x"; want the seq of an answer before`, "shield=no%3Cb%3E": `shield is "no<b>"; want one of shop`,
	} {
		err := serveLive(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/shield/live?"+query, nil))
		var api caddy.APIError
		if !errors.As(err, &api) || api.HTTPStatus/100 != 4 || api.Err.Error() != want {
			t.Errorf("%s: %v; want %s", query, err, want)
		}
	}
	var api caddy.APIError
	if err := serveLive(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/shield/live", nil)); !errors.As(err, &api) || api.HTTPStatus != http.StatusMethodNotAllowed {
		t.Errorf("POST: %v", err)
	}
}

// The clients of a backlog are those that have an appointment, not as many as would have room until
// its end.
func TestWaitingIsCounted(t *testing.T) {
	s := serveSite(t, "{"+globalOptions+`}
http://:0 {
	bind 127.0.0.1
	shield {
		name shop
		capacity 1/s burst 1
		retries {
			key {header.X-Client}
		}
		pushback {
			dither off
		}
	}
	respond ok
}
`)
	for client := range 8 {
		s.get("/", "X-Client", fmt.Sprint("c", client))
	}
	waits := func(n float64) {
		t.Helper()
		if w := watchOf(t, "").Shields[0]; w.Waiting == nil && n > 0 || w.Waiting != nil && w.Waiting.Clients != n {
			t.Errorf("%+v wait; want %v clients: %s", w.Waiting, n, w.Says)
		}
	}
	waits(7)
	for left, client := range []string{"c2", "c3", "c4", "c1", "c6", "c5"} { // not the last one
		administer(t, locally("POST", "/shield/forgive", fmt.Sprintf(`{"client": %q}`, client)))
		waits(float64(6 - left))
	}
	if says := watchOf(t, "").Shields[0].Says; !strings.Contains(says, "the last refused client comes back in ") {
		t.Errorf("with one client: %s", says)
	}
	administer(t, locally("POST", "/shield/forgive", `{"client": "c7"}`))
	waits(0)
}

// One client with many appointments is said to be one.
func TestBacklogOfOneClient(t *testing.T) {
	s := serveSite(t, "{"+globalOptions+`}
http://:0 {
	bind 127.0.0.1
	shield {
		name shop
		capacity 1/s burst 1
		pushback {
			dither off
		}
	}
	respond ok
}
`)
	for range 9 { // before an answer can have reached it: they may be several behind one address
		s.get("/")
	}
	s.app.stopReports()
	for range 2 {
		later := shield.Now() + time.Second
		s.app.configured.shields[0].guard().Tick(later)
		s.app.reportOnce(later)
	}
	w := watchOf(t, "").Shields[0]
	if !regexp.MustCompile(`; the backlog of about \d appointments of a single client will be over in \d+ s\.$`).MatchString(w.Says) || w.Herd != nil {
		t.Errorf("%s; the herd is %+v", w.Says, w.Herd)
	}
}

// A follower gets a line for each second, and its answer ends when the config does.
func TestFollow(t *testing.T) {
	r := start(t, setup{handlers: watched})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _ = serveLive(w, r) }))
	defer server.Close()
	resp, err := http.Get(server.URL + "/shield/live?follow=1&shield=shop")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines, seqs := bufio.NewScanner(resp.Body), []uint64{}
	for len(seqs) < 3 && lines.Scan() {
		var w adminapi.Watch
		if err := json.Unmarshal(lines.Bytes(), &w); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		if n := len(lines.Bytes()); n > 2<<10 {
			t.Errorf("a line has %d bytes; want 2 KB at most", n)
		}
		seqs = append(seqs, w.Seq)
	}
	if len(seqs) < 3 || seqs[2] <= seqs[0] {
		t.Fatalf("seconds %v: %v", seqs, lines.Err())
	}
	r.load(setup{handlers: strings.Replace(watched, `"rate": 5`, `"rate": 6`, 1)})
	ended := make(chan struct{})
	go func() {
		for lines.Scan() {
		}
		close(ended)
	}()
	receive(t, "the end of the answer", ended)
	eventually(t, "no follower is left", func() bool { return followers.Load() == 0 })
	followers.Add(maxFollowers)
	defer followers.Add(-maxFollowers)
	var api caddy.APIError
	if err := serveLive(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/shield/live?follow=1", nil)); !errors.As(err, &api) || api.HTTPStatus != http.StatusServiceUnavailable {
		t.Errorf("with %d followers: %v", maxFollowers, err)
	}
}

// A person at the page or at top writes one line into the server's log, however long it is watched: that
// request also tells who is refused and what is in force, as the other endpoints do. Certificates of
// remote administration may not read those by it, as they have rights by path.
func TestFollowersWriteOneLine(t *testing.T) {
	admin := freeAddr(t)
	file := filepath.Join(t.TempDir(), "log")
	r := start(t, setup{handlers: watched, admin: admin, log: fmt.Sprintf(`{"output": "file", "filename": %q}`, file)})
	for range 9 {
		r.get("/")
	}
	administer(t, locally("POST", "/shield/overrides", `{"kind": "set", "shield": "shop", "setting": "capacity", "value": "4/s burst 4", "for": "1h"}`))
	resp, err := http.Get("http://" + admin + "/shield/live?follow=1&all=1&last=3&shield=shop")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := json.NewDecoder(resp.Body)
	for range 4 {
		var w adminapi.Watch
		if err := lines.Decode(&w); err != nil {
			t.Fatal(err)
		}
		if w.Who == nil || len(w.Who.Shields) != 1 || len(w.Who.Shields[0].Refused) != 1 || w.Who.Shields[0].Refused[0].Client != "127.0.0.1" {
			t.Errorf("who: %+v", w.Who)
		}
		if is := w.Overrides; is == nil || is.ReadOnly || len(is.Overrides) != 1 || is.Overrides[0].Value != "4/s burst 4" || len(is.Settings) == 0 || w.ETag == "" {
			t.Errorf("overrides: %+v", is)
		}
		if n := w.Shields[0].Samples.Count; n > 3 {
			t.Errorf("%d seconds; want the last 3", n)
		}
	}
	if logged, err := os.ReadFile(file); err != nil || bytes.Count(logged, []byte(`"received request"`)) != 1 {
		t.Errorf("%v; four seconds write into the log\n%s\nwant one request", err, logged)
	}
	remote := httptest.NewRequest(http.MethodGet, "/shield/live?all=1", nil)
	remote.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{new(x509.Certificate)}}
	rec := httptest.NewRecorder()
	if err := serveLive(rec, remote); err != nil || regexp.MustCompile(`"who":\{|"overrides":\{`).Match(rec.Body.Bytes()) {
		t.Errorf("%v; a certificate reads %s", err, rec.Body)
	}
	var api caddy.APIError
	if err := serveLive(rec, httptest.NewRequest(http.MethodGet, "/shield/live?last=0", nil)); !errors.As(err, &api) || api.Err.Error() != `last is "0"; want a number of seconds, at least 1` {
		t.Errorf("last=0: %v", err)
	}
}

// Browsers get a page that runs its own script and no other; programs get JSON.
func TestPageForBrowsers(t *testing.T) {
	start(t, setup{handlers: watched})
	answer := func(accept string) *httptest.ResponseRecorder {
		rec, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/shield/", nil)
		if accept != "" {
			r.Header.Set("Accept", accept)
		}
		if err := serveStatus(rec, r); err != nil {
			t.Fatal(err)
		}
		return rec
	}
	for accept, kind := range map[string]string{
		"": "application/json", "*/*": "application/json", "application/json": "application/json", "application/json, text/html": "application/json",
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": "text/html; charset=utf-8",
	} {
		if rec := answer(accept); rec.Header().Get("Content-Type") != kind || rec.Header().Get("Vary") != "Accept" {
			t.Errorf("Accept: %s: %v; want %s", accept, rec.Header(), kind)
		}
	}
	rec := answer("text/html")
	policy, html := rec.Header().Get("Content-Security-Policy"), rec.Body.String()
	if strings.Contains(policy, "unsafe") || !strings.HasPrefix(policy, "default-src 'none'; ") {
		t.Errorf("the policy is %s", policy)
	}
	for _, want := range []string{"connect-src 'self'", "img-src data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("no %s in the policy %s", want, policy)
		}
	}
	for tag, of := range map[string]string{"script": "script-src", "style": "style-src"} {
		all := regexp.MustCompile(`(?s)<`+tag+`[^>]*>(.*?)</`+tag+`>`).FindAllStringSubmatch(html, -1)
		if len(all) != 1 {
			t.Fatalf("%d elements %s; want 1", len(all), tag)
		}
		sum := sha256.Sum256([]byte(all[0][1]))
		if want := of + " 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(policy, want) {
			t.Errorf("no %s in the policy %s", want, policy)
		}
	}
	for _, not := range []string{`style="`, "onclick=", "onload=", "who?", "overrides?", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "https://", "//cdn"} {
		if strings.Contains(html, not) {
			t.Errorf("the page has %s", not)
		}
	}
	if got, _ := oncall.Page(); len(html) < 10_000 || !bytes.Equal(got, rec.Body.Bytes()) {
		t.Errorf("the page has %d bytes", len(html))
	}
}

// busy returns an App with two shields, both with ten minutes of a herd.
func busy(t testing.TB) *App {
	t.Helper()
	app := new(App)
	for _, name := range []string{"shop", "api"} {
		guard, err := shield.New(shield.Config{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		s := &shieldEntry{name: name, of: new(Handler), record: new(backendRecord)}
		s.of.use(&inForce{guard: guard})
		r := oncall.Reading{KeptShare: .97, Limit: 64}
		for n := uint64(1); n <= oncall.Seconds; n++ {
			r.Admitted += 80 + n*7919%40
			r.Refused[shield.Capacity] += n * 104729 % 400
			r.Refused[shield.Early] += n * 31 % 50
			r.Refused[shield.Quota] += n * 17 % 9
			r.Kept += 60 + n*13%30
			r.NoShow += n % 3
			r.Backlog = time.Duration(60_000-n*97) * time.Millisecond
			r.Deferred, r.InFlight, r.Queue, r.Held, r.Limit = int(1200-n), int(n*11%64), int(n*3%32), int(n*5%200), 64-int(n/60)
			r.Classes = []oncall.ClassReading{{Name: "critical", Admitted: r.Admitted / 8}, {Name: "default", Admitted: r.Admitted / 2, Refused: r.Refused[shield.Capacity] / 2}, {Name: "sheddable", Admitted: r.Admitted / 4, Refused: r.Refused[shield.Capacity] / 2}}
			s.record.history.Observe(n, r)
		}
		for n := range uint64(64) {
			s.record.history.Note(540+n%60, oncall.Warn, "a herd: 2,310 clients came at once")
			s.record.history.NoteLimit(540+n%60, oncall.Warn, "48 → 31: latency rose, 655 ms, without a queue 96 ms")
		}
		app.configured.shields = append(app.configured.shields, s)
	}
	app.live = new(atomic.Pointer[roster])
	return app
}

// Only a cut for latency is told as one: a probe lowers the limit while latency is what it was.
func TestCutByLatency(t *testing.T) {
	for _, c := range []struct {
		reason loadshed.Reason
		ago    time.Duration
		want   bool
	}{
		{loadshed.Congested, time.Second, true}, {loadshed.Congested, time.Minute, false},
		{loadshed.Probed, time.Second, false}, {loadshed.Unused, time.Second, false}, {0, time.Second, false},
	} {
		last := loadshed.Change{At: time.Hour, From: 22, To: 12, Reason: c.reason, Latency: 1505 * time.Millisecond, Baseline: 1504 * time.Millisecond}
		if got := cutByLatency(time.Hour+c.ago, last); (got != nil) != c.want {
			t.Errorf("%v, %v ago: %+v; want one: %v", c.reason, c.ago, got, c.want)
		}
	}
}

// The page is sent ten minutes once, and little each second.
func TestLiveIsSmall(t *testing.T) {
	app := busy(t)
	var b bytes.Buffer
	for name, most := range map[string]int{"shop": 60 << 10, "": 100 << 10} {
		b.Reset()
		if _, err := app.watch(&b, question{shield: name}); err != nil {
			t.Fatal(err)
		}
		t.Logf("ten minutes under a herd of shield %q: %d bytes", name, b.Len())
		if n := b.Len(); n > most {
			t.Errorf("ten minutes under a herd of shield %q have %d bytes; want %d at most", name, n, most)
		}
	}
	b.Reset()
	if _, err := app.watch(&b, question{since: oncall.Seconds - 1, shield: "shop"}); err != nil {
		t.Fatal(err)
	}
	if n := b.Len(); n > 2<<10 {
		t.Errorf("one second has %d bytes; want 2 KB at most", n)
	} else {
		t.Logf("one second: %d bytes", n)
	}
}

// Ten pages ask ten times a second: this times ten is their part of a core.
func BenchmarkLiveSecond(b *testing.B) {
	app := busy(b)
	var out bytes.Buffer
	b.ReportAllocs()
	for b.Loop() {
		out.Reset()
		if _, err := app.watch(&out, question{since: oncall.Seconds - 1, shield: "shop"}); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(out.Len()))
}

// The price of a second for each shield, whether or not a page is open.
func BenchmarkRemember(b *testing.B) {
	s := busy(b).configured.shields[0]
	b.ReportAllocs()
	seq := uint64(oncall.Seconds)
	for b.Loop() {
		seq++
		s.remember(shield.Now(), seq, nil)
	}
}
