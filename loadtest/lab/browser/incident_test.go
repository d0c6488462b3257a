package browser

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/herdshield/shield/caddymodule/adminapi"
)

// An incident as docs/on-call/incident.md tells it: a herd, then one client that hammers, then a slow
// backend. A person with nothing but the page can name the cause, the culprit and the end.
// The rows of shield top come from the same two answers.
func TestIncident(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	s.base(s.shop, 30, "/", "/cart", "/pay", "/feed")
	time.Sleep(3 * time.Second) // of quiet history
	p := open(t, "http://"+s.admin+"/shield/#shop")
	says := func(within time.Duration, what string) {
		t.Helper()
		pattern, said := regexp.MustCompile(what), ""
		for deadline := time.Now().Add(within); !pattern.MatchString(said); time.Sleep(50 * time.Millisecond) {
			if said = p.text("says"); time.Now().After(deadline) {
				t.Fatalf("the page says %q; want %s within %v", said, what, within)
			}
		}
		t.Log(said)
	}
	says(10*time.Second, `^shop admits all`)
	p.do(chromedp.Click(`[data-window="120"]`)) // two minutes

	// The cause of a herd is the capacity, or on a slow machine the limit in flight, no client is the
	// culprit, and the end is told.
	clients := 300
	if *pictures != "" {
		clients = 600
	}
	s.herd(s.shop, clients)
	says(15*time.Second, `^shop rejects .* because the backend('s capacity of 60/s is used up| is full, with a limit of \d+ in flight.*); the backlog of about [\d,]+ clients will be over in \d+ s\.$`)
	p.shoot("on-call-herd")
	if first := s.who("shop").Rejected[0]; first.LastMinute > 10 {
		t.Errorf("in the herd %+v has most rejections; want a few for each client", first)
	}
	says(60*time.Second, `^shop admits all`)

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
	says(15*time.Second, `^shop rejects .* because single clients are over their own quota`)
	eventually(t, 5*time.Second, "the culprit is named", func() bool {
		who := s.who("shop").Rejected
		return len(who) > 0 && who[0].Client == "192.0.2.66" && who[0].Agent == "python" && who[0].Reason == "quota"
	})
	p.shoot("on-call-hammer")
	stop()
	says(30*time.Second, `^shop admits all`)

	// The backend is slow: its limit is used up, and its latency says why.
	s.latency.Store(int64(1500 * time.Millisecond))
	says(60*time.Second, `^shop rejects .* because the backend is full, with a limit of \d+ in flight`)
	eventually(t, 30*time.Second, "a change of the limit names the latency", func() bool {
		return regexp.MustCompile(`from \d+, to \d+, latency \d.* (ms|s)`).MatchString(p.text("limits"))
	})
	p.shoot("on-call-slow")
	s.latency.Store(int64(15 * time.Millisecond))
	says(90*time.Second, `^shop admits all requests`)
}

// who asks which clients a shield has rejected.
func (s *site) who(shield string) adminapi.WhoList {
	s.Helper()
	resp, err := http.Get("http://" + s.admin + "/shield/who?shield=" + shield)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	var who adminapi.WhoStatus
	if err := json.NewDecoder(resp.Body).Decode(&who); err != nil || len(who.Shields) != 1 {
		s.Fatalf("%+v, error %v", who, err)
	}
	return who.Shields[0]
}
