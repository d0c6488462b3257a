package browser

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/loadtest/lab/chromium"
	"github.com/herdshield/shield/loadtest/lab/must"
)

// An incident as docs/on-call/incident.md tells it: a herd, then a slow backend, then one client that
// hammers. A person with nothing but the page can name the cause, the culprit and the end, and reads what the docs say that they
// will.
func TestIncident(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	s.base(s.shop, 30, "/", "/cart", "/pay", "/feed")
	history, slow := 3*time.Second, time.Duration(0)
	if *chromium.Pictures != "" { // they show two minutes
		history, slow = 110*time.Second, 4*time.Second
	}
	time.Sleep(history)
	p := open(t, "http://"+s.admin+"/shield/#shop")
	said := ""
	says := func(within time.Duration, what string) {
		t.Helper()
		pattern := regexp.MustCompile(what)
		for deadline := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
			if said = p.text("says"); pattern.MatchString(said) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the page says %q; want %s within %v", said, what, within)
			}
		}
		t.Log(said)
	}
	says(10*time.Second, `^shop is admitting all`)
	p.Do(chromedp.Click(`[data-window="120"]`)) // two minutes

	// The cause of a herd is the capacity, no client is the culprit, and the end is told. On a slow machine it can be the limit in flight: then
	// another herd comes.
	clients := 300
	if *chromium.Pictures != "" {
		clients = 600
	}
	for is := ""; is != "capacity"; {
		if s.herds == 3 {
			t.Fatalf("the cause of three herds was the limit in flight, as the page says: %s; the docs show one whose cause is the capacity, so run this alone", said)
		}
		s.herd(s.shop, clients)
		says(15*time.Second, `^shop is rejecting .* because the backend('s capacity of 60/s is used up| is at its in-flight limit of \d+.*); the backlog of about [\d,]+ clients will clear in \d+ s\.$`)
		if is = regexp.MustCompile("capacity|limit").FindString(said); is != "capacity" {
			says(60*time.Second, `^shop is admitting all requests \([^)]*\)\.`)
			continue
		}
		p.documented("on-call-herd", `capacity of 60/s is used up; the backlog of about [\d,]+ clients will clear`, `^203\.0\.\S+  \S+  1  capacity  `)
	}
	if first := s.who("shop").Rejected[0]; first.LastMinute > 10 {
		t.Errorf("in the herd %+v has most rejections; want a few for each client", first)
	}
	says(60*time.Second, `^shop is admitting all requests \([^)]*\)\.`)

	// The backend is slow: its limit is used up, and its latency says why. Requests wait in the queue, and clients are listed.
	users, leave := context.WithCancel(s.ctx)
	defer leave()
	for i := range 20 {
		s.user(users, s.shop, fmt.Sprintf("198.51.100.%d", 20+7*i), "/cart")
	}
	s.latency.Store(int64(time.Second))
	says(60*time.Second, `^shop is rejecting .* because the backend is at its in-flight limit of \d+`)
	p.Eventually(30*time.Second, "a change of the limit names the latency", func() bool {
		return regexp.MustCompile(`from \d+, to \d+, latency \d.* (ms|s)`).MatchString(p.text("limits"))
	})
	time.Sleep(slow)
	p.Eventually(60*time.Second, "the queue fills", func() bool { return p.number("Queue") > 0 })
	p.documented("on-call-light-1280", `in-flight limit of \d+, lowered when latency rose from`, `^198\.51\.100\.\d+  \S+  ([2-9]|\d\d)  concurrency  browser`)
	leave()
	s.latency.Store(int64(15 * time.Millisecond))
	says(90*time.Second, `^shop is admitting all requests \([^)]*\)\.`)

	// One client hammers: the cause is its own quota, and who it is is told.
	ctx, stop := context.WithCancel(t.Context())
	for range 4 {
		s.clients.Go(func() {
			for ctx.Err() == nil {
				s.get(s.shop, "192.0.2.66", "/feed", "User-Agent", "python-requests/2.32")
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	says(15*time.Second, `^shop is rejecting .* because some clients are over their quota\.`)
	p.Eventually(5*time.Second, "the culprit is named", func() bool {
		who := s.who("shop").Rejected
		return len(who) > 0 && who[0].Client == "192.0.2.66" && who[0].Agent == "python" && who[0].Reason == "quota"
	})
	p.documented("on-call-hammer", `because some clients are over their quota\.`, `^192\.0\.2\.66  \S+  [\d,]{3,}  quota  python`)
	stop()
	says(30*time.Second, `^shop is admitting all`)

	// Each overload is an event, from its beginning to its end.
	p.Eventually(20*time.Second, "as many overloads have ended as began", func() bool {
		events := p.text("event-list")
		n := strings.Count(events, "overload started")
		return n > 0 && n == strings.Count(events, "overload ended")
	})
	events := p.text("event-list")
	t.Log(chromium.Eval[string](p.Tab, `document.getElementById("event-list").innerText`))
	if n := strings.Count(events, "overload started"); n > s.herds+2 {
		t.Errorf("%d overloads; want one for each of the %d herds and two other faults at most: %s", n, s.herds, events)
	}
}

// incidentPage quotes what the page shows in each picture, in a block of text that follows it: the headline, and rows of the list of clients.
const incidentPage = "../../../docs/on-call/incident.md"

// blurred are parts of a quote that differ from run to run.
var blurred = regexp.MustCompile(`\((\d+%|all|less than 1%)\)|\d[\d.,]*|\bm?s\b`)

// documented waits until the headline matches a pattern and so does a row of the list, and compares both with what the page in the docs
// quotes for a picture. With -pictures, it takes the picture, and writes the quote.
func (p *tab) documented(picture, headline, row string) {
	p.Helper()
	pattern, ofRow := regexp.MustCompile(headline), regexp.MustCompile(row)
	state := func() []string {
		return strings.Split(chromium.Eval[string](p.Tab, `[document.getElementById("says").textContent,
			...[...document.querySelectorAll("#who tbody tr")].map(tr => [0, 1, 2, 5, 7].map(i => tr.children[i].textContent).join("  "))].join("\n")`), "\n")
	}
	var shows []string
	p.Eventually(time.Minute, fmt.Sprintf("the page has what %s shows", picture), func() bool {
		if shows = state(); !pattern.MatchString(shows[0]) || !slices.ContainsFunc(shows[1:], ofRow.MatchString) {
			return false
		}
		p.Picture(picture)
		return *chromium.Pictures == "" || slices.Equal(shows, state()) // else the picture may be of a second later
	})
	text := must.Get(os.ReadFile(incidentPage))(p)
	block := regexp.MustCompile(`(?s)\(` + regexp.QuoteMeta(picture) + `\.png\)\n+` + "```text\n(.*?)\n```").FindSubmatchIndex(text)
	if block == nil {
		p.Fatalf("%s does not quote what %s shows", incidentPage, picture)
	}
	if *chromium.Pictures != "" {
		of := slices.DeleteFunc(slices.Clone(shows[1:]), func(r string) bool { return !ofRow.MatchString(r) })
		var quote bytes.Buffer
		columns := tabwriter.NewWriter(&quote, 0, 0, 2, ' ', 0)
		for _, r := range slices.Concat([]string{"CLIENT  REJECTED/S  LAST MINUTE  REASON  AGENT"}, of[:min(2, len(of))]) {
			fmt.Fprint(columns, "\n", strings.ReplaceAll(r, "  ", "\t"))
		}
		columns.Flush()
		must.Do(p, os.WriteFile(incidentPage, slices.Concat(text[:block[2]], []byte(shows[0]+"\n"), quote.Bytes(), text[block[3]:]), 0o644))
		return
	}
	blur := func(s string) string { return strings.Join(strings.Fields(blurred.ReplaceAllString(s, "#")), " ") }
	quoted := strings.Split(string(text[block[2]:block[3]]), "\n")
	if is, want := blur(shows[0]), blur(quoted[0]); is != want {
		p.Errorf("with %s the docs say %q, and the page %q", picture, quoted[0], shows[0])
	}
	for _, want := range quoted[3:] {
		if !slices.ContainsFunc(shows[1:], func(r string) bool { return blur(r) == blur(want) }) {
			p.Errorf("with %s the docs have the row %q, and the page has %q", picture, want, shows[1:])
		}
	}
}

func (s *site) who(shield string) adminapi.WhoList {
	s.Helper()
	var who adminapi.WhoStatus
	if must.JSON(s, "http://"+s.admin+"/shield/who?shield="+shield, &who); len(who.Shields) != 1 {
		s.Fatalf("%+v", who)
	}
	return who.Shields[0]
}
