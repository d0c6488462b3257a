package report

import (
	"encoding/json"
	"html"
	"regexp"
	"strings"
	"testing"

	"github.com/herdshield/shield/chart"
	"github.com/herdshield/shield/loadtest/clients"
)

// hostile is text that ends strings, elements and comments in HTML, JavaScript and JSON.
const hostile = `</script><script>alert("1")</script><img src=x onerror='a()'>&amp;<!--]]>` + "\u2028`${x}"

func TestPage(t *testing.T) {
	r := example()
	r.About, r.Version = []string{"A herd of 100 clients."}, "shield v1.2.3"
	text := written(t, r.Page().WriteHTML)
	for _, want := range []string{
		"<h1>shield simulate: a.caddyfile, none</h1>", "a.caddyfile served 98 of 100 clients, and 2 not by the end; none served 0 of 100 clients, and 100 not by the end.",
		"A herd of 100 clients.", "<dt>a.caddyfile</dt><dd>a note</dd>", "none ended after 12346 requests (--requests), at 7s, before its time.",
		"Made by shield v1.2.3, seed 7.", `<th scope="row">clients served</th><td>98 of 100</td><td>0 of 100</td>`, "<td>never</td>", "<details>", "Gave up: their policy",
	} {
		if !strings.Contains(html.UnescapeString(text), want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if one, other := written(t, example().Page().WriteHTML), written(t, example().Page().WriteHTML); one != other {
		t.Error("the same report gave two pages")
	}
}

// The sentence is about the best and the worst run, or about all clients if there is no herd.
func TestLead(t *testing.T) {
	r := example()
	r.Runs = append(r.Runs, r.Runs[0])
	r.Runs[2].Name, r.Runs[2].Served = "all", 100
	if got, want := r.Lead(), "Best of 3: all served all 100 clients, the last after 4.20 s. Worst: none served 0 of 100 clients, and 100 not by the end."; got != want {
		t.Errorf("lead is %q; want %q", got, want)
	}
	for i := range r.Runs {
		r.Runs[i].Clients, r.Runs[i].Served = 0, 0
	}
	r.Runs = r.Runs[:1]
	if got, want := r.Lead(), "a.caddyfile served 50 % of the clients at their first request, and left 0 % unserved."; got != want {
		t.Errorf("lead is %q; want %q", got, want)
	}
}

// Names are text, wherever they come from, and the data stay JSON.
func TestPageEscapes(t *testing.T) {
	r := example()
	r.Runs[0].Name, r.Runs[0].Notes, r.Version, r.About = hostile, []string{hostile}, hostile, []string{hostile}
	r.Runs[0].Policies[0].Policy = clients.Named{Name: hostile, Policy: clients.Exact{}}
	r.Marks[0].Name = hostile
	clean, dirty := written(t, example().Page().WriteHTML), written(t, r.Page().WriteHTML)
	for _, part := range []string{"<script", "</script", "<img", "<!--"} {
		if strings.Count(clean, part) != strings.Count(dirty, part) {
			t.Errorf("a name brings %q into the page", part)
		}
	}
	if n := strings.Count(html.UnescapeString(dirty), hostile); n < 5 {
		t.Errorf("the name is %d times in the text; want it in the sentence, the setup and the footer", n)
	}
	var figures []chart.Figure
	if err := json.Unmarshal([]byte(data(t, dirty)), &figures); err != nil || figures[0].Charts[0].Name != shorten(hostile, 40) {
		t.Errorf("error is %v, and the data name %q; want %q", err, figures[0].Charts[0].Name, shorten(hostile, 40))
	}
	svg := written(t, r.Page().WriteSVG)
	if !strings.Contains(texts(t, svg), shorten(hostile, 40)) || strings.Contains(svg, "<script") || strings.Contains(svg, "<img") {
		t.Error("the picture does not have the name as text")
	}
}

// data returns the JSON of a page.
func data(t *testing.T, page string) string {
	t.Helper()
	m := regexp.MustCompile(`(?s)<script type="application/json" id="data">(.*?)</script>`).FindStringSubmatch(page)
	if m == nil {
		t.Fatal("the page has no data")
	}
	return m[1]
}

// The page fetches nothing, and its policy allows its own scripts and style only.
func TestPageIsWhole(t *testing.T) {
	page := written(t, example().Page().WriteHTML)
	if m := regexp.MustCompile(`(?i)(src|srcset|action|poster)=|@import|url\(["']?[^#"']*:|fetch\(|XMLHttp|import\(`).FindString(page); m != "" {
		t.Errorf("the page has %q, and may fetch something", m)
	}
	for _, m := range regexp.MustCompile(`href="?([^" >]*)`).FindAllStringSubmatch(page, -1) {
		if m[1] != "data:," {
			t.Errorf("the page has a link to %s", m[1])
		}
	}
	if m := regexp.MustCompile(`(?i)\s(style|on[a-z]+)="`).FindString(page); m != "" {
		t.Errorf("the page has the attribute %q, which its policy forbids", m)
	}
	policy := html.UnescapeString(regexp.MustCompile(`Content-Security-Policy" content="([^"]*)"`).FindStringSubmatch(page)[1])
	if !strings.HasPrefix(policy, "default-src 'none'; script-src 'sha256-") || strings.Contains(policy, "unsafe") {
		t.Errorf("the policy is %s", policy)
	}
	inline := regexp.MustCompile(`(?s)<(script|style)>(.*?)</(?:script|style)>`).FindAllStringSubmatch(page, -1)
	if len(inline) != 3 {
		t.Fatalf("%d scripts and styles; want 3", len(inline))
	}
	for _, m := range inline {
		if directive := regexp.MustCompile(m[1] + `-src [^;]*`).FindString(policy); !strings.Contains(directive, hash(m[2])) {
			t.Errorf("the policy, %s, does not allow a %s that begins with %.30q", policy, m[1], m[2])
		}
	}
}
