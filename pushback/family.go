package pushback

import (
	"strings"
	"sync/atomic"
	"time"
)

// A Family is a kind of client software, by its User-Agent. Clients of one family treat
// Retry-After alike, so promises are counted per family. It is an index into families.
type Family uint8

// families are all there are, the first for those that are not known. Their number is fixed, so that
// User-Agents, which clients choose, do not make metrics grow. begins has how their User-Agents begin,
// and has what is looked for in those whose beginning is not known, in the order of the list.
var families = [...]struct{ name, begins, has string }{
	{"other", "", ""},
	{"browser", "Mozilla/|Opera/", ""}, // most robots begin like this, too
	{"curl", "curl/|libcurl|Wget/", ""},
	{"go", "Go-http-client|Go |go-", "go-resty"},
	{"python", "Python|python|aiohttp|httpx|OpenAI/Python", ""},
	{"node", "node|axios|got |got/|ky/|undici|OpenAI/JS", ""},
	{"java", "Java|Jetty|Apache-HttpClient|ReactorNetty|okhttp|google-http-java", ""},
	{"dotnet", "dotnet|RestSharp", ".NET"},
	{"ruby", "Ruby|Faraday|rest-client", ""},
	{"php", "PHP|GuzzleHttp|Symfony", ""},
	{"rust", "reqwest|hyper|ureq", ""},
	{"grpc", "grpc-", ""},
	{"kubernetes", "kube|helm", "client-go|kubernetes/"},
	{"aws", "aws-|Boto", "otocore"},
	{"azure", "azsdk", "zure"},
	{"monitor", "Prometheus/|Grafana|Blackbox|Fluent|OTel|vector/", "elemetry|otel"},
	{"bot", "", "bot|Bot|crawl|spider"},
}

func (f Family) String() string { return families[f].name }

type agent struct {
	text   string
	family Family
}

// beginnings are those of families by their first byte, and markers what is looked for. The first match counts.
var (
	beginnings [256][]agent
	markers    []agent
)

func init() {
	for i, f := range families {
		for text := range strings.SplitSeq(f.begins, "|") {
			if text != "" {
				beginnings[text[0]] = append(beginnings[text[0]], agent{text, Family(i)})
			}
		}
		for text := range strings.SplitSeq(f.has, "|") {
			if text != "" {
				markers = append(markers, agent{text, Family(i)})
			}
		}
	}
}

// FamilyOf returns the family of a User-Agent. It looks at its first 128 bytes.
func FamilyOf(name string) Family {
	name = name[:min(len(name), 128)]
	if name == "" {
		return 0
	}
	const browser, bot = 1, Family(len(families) - 1)
	var family Family
	for _, a := range beginnings[name[0]] {
		if strings.HasPrefix(name, a.text) {
			if family = a.family; family != browser {
				return family
			}
		}
	}
	for _, m := range markers {
		if (family == 0 || m.family == bot) && strings.Contains(name, m.text) {
			return m.family
		}
	}
	return family
}

// FamilyStats counts how clients of one Family treated what they were told.
type FamilyStats struct {
	Told  uint64 `json:"told"`  // rejections with a time to come back
	Kept  uint64 `json:"kept"`  // returns at that time
	Late  uint64 `json:"late"`  // returns more than a second and a quarter of the wait later
	Early uint64 `json:"early"` // returns before
}

type familyCounts struct{ told, kept, late, early atomic.Uint64 }

func (f *familyCounts) returned(now time.Duration, v *Visit) {
	switch {
	case v.Standing == TooEarly:
		f.early.Add(1)
	case !v.Shared && now > v.At+lateEnd(v.lead)-v.lead:
		f.late.Add(1)
	case v.OnTime():
		f.kept.Add(1)
	}
}

func (f *familyCounts) stats() FamilyStats {
	return FamilyStats{f.told.Load(), f.kept.Load(), f.late.Load(), f.early.Load()}
}
