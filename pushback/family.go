package pushback

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// A Family is a kind of client software, by its User-Agent. Clients of one family treat
// Retry-After alike, so promises are counted per family.
type Family uint8

// The families. Their number is fixed, so that User-Agents, which clients choose, do not
// make metrics grow.
const (
	FamilyOther Family = iota
	FamilyBrowser
	FamilyCurl
	FamilyGo
	FamilyPython
	FamilyNode
	FamilyJava
	FamilyDotNet
	FamilyRuby
	FamilyPHP
	FamilyRust
	FamilyGRPC
	FamilyKubernetes
	FamilyAWS
	FamilyAzure
	FamilyMonitor
	FamilyBot

	Families = iota
)

func (f Family) String() string {
	return nameOf("Family", f,
		"other", "browser", "curl", "go", "python", "node", "java", "dotnet", "ruby", "php", "rust",
		"grpc", "kubernetes", "aws", "azure", "monitor", "bot")
}

// nameOf returns the i-th name, or as Go's stringers do "Kind(i)" if there is none.
func nameOf[T ~uint8](kind string, i T, names ...string) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", kind, uint8(i))
}

// beginnings are prefixes of User-Agents, by their first byte. markers are looked for in
// those without a known prefix. The first match counts.
var (
	beginnings = [256][]agent{
		'A': {{"Apache-HttpClient", FamilyJava}},
		'B': {{"Boto", FamilyAWS}, {"Blackbox", FamilyMonitor}},
		'F': {{"Fluent", FamilyMonitor}, {"Faraday", FamilyRuby}},
		'G': {{"Go-http-client", FamilyGo}, {"Grafana", FamilyMonitor}, {"GuzzleHttp", FamilyPHP}, {"Googlebot", FamilyBot}, {"Go ", FamilyGo}},
		'J': {{"Java", FamilyJava}, {"Jetty", FamilyJava}},
		'M': {{"Mozilla/", FamilyBrowser}},
		'O': {{"OTel", FamilyMonitor}, {"OpenAI/Python", FamilyPython}, {"OpenAI/JS", FamilyNode}, {"Opera/", FamilyBrowser}},
		'P': {{"Prometheus/", FamilyMonitor}, {"Python", FamilyPython}, {"PHP", FamilyPHP}},
		'R': {{"Ruby", FamilyRuby}, {"RestSharp", FamilyDotNet}, {"ReactorNetty", FamilyJava}},
		'S': {{"Symfony", FamilyPHP}},
		'W': {{"Wget/", FamilyCurl}},
		'a': {{"aws-", FamilyAWS}, {"azsdk", FamilyAzure}, {"axios", FamilyNode}, {"aiohttp", FamilyPython}},
		'c': {{"curl/", FamilyCurl}},
		'd': {{"dotnet", FamilyDotNet}},
		'g': {{"grpc-", FamilyGRPC}, {"got ", FamilyNode}, {"got/", FamilyNode}, {"google-http-java", FamilyJava}, {"go-", FamilyGo}},
		'h': {{"httpx", FamilyPython}, {"helm", FamilyKubernetes}, {"hyper", FamilyRust}},
		'k': {{"kube", FamilyKubernetes}, {"ky/", FamilyNode}},
		'l': {{"libcurl", FamilyCurl}},
		'n': {{"node", FamilyNode}},
		'o': {{"okhttp", FamilyJava}},
		'p': {{"python", FamilyPython}},
		'r': {{"reqwest", FamilyRust}, {"rest-client", FamilyRuby}},
		'u': {{"undici", FamilyNode}, {"ureq", FamilyRust}},
		'v': {{"vector/", FamilyMonitor}},
	}
	markers = []agent{
		{"otocore", FamilyAWS}, {"client-go", FamilyKubernetes}, {"kubernetes/", FamilyKubernetes},
		{"zure", FamilyAzure}, {"elemetry", FamilyMonitor}, {"otel", FamilyMonitor}, {"go-resty", FamilyGo}, {".NET", FamilyDotNet},
		{"bot", FamilyBot}, {"Bot", FamilyBot}, {"crawl", FamilyBot}, {"spider", FamilyBot},
	}
	robots = markers[len(markers)-4:]
)

type agent struct {
	text   string
	family Family
}

// FamilyOf returns the family of a User-Agent. It looks at its first 128 bytes.
func FamilyOf(name string) Family {
	if name == "" {
		return FamilyOther
	}
	name = name[:min(len(name), 128)]
	for _, a := range beginnings[name[0]] {
		if !strings.HasPrefix(name, a.text) {
			continue
		}
		if a.family == FamilyBrowser { // most robots use this prefix, too
			return marked(name, robots, FamilyBrowser)
		}
		return a.family
	}
	return marked(name, markers, FamilyOther)
}

func marked(name string, markers []agent, otherwise Family) Family {
	for _, m := range markers {
		if strings.Contains(name, m.text) {
			return m.family
		}
	}
	return otherwise
}

// FamilyStats counts how clients of one Family treated what they were told.
type FamilyStats struct {
	Told  uint64 `json:"told"`  // refusals with a time to come back
	Kept  uint64 `json:"kept"`  // returns at that time
	Late  uint64 `json:"late"`  // returns more than a second and a quarter of the wait later
	Early uint64 `json:"early"` // returns before
}

type familyCounts struct{ told, kept, late, early atomic.Uint64 }

func (f *familyCounts) returned(now time.Duration, v *Visit) {
	switch {
	case v.Standing == TooEarly:
		f.early.Add(1)
	case !v.shared && now > v.At+lateEnd(v.lead)-v.lead:
		f.late.Add(1)
	case v.OnTime():
		f.kept.Add(1)
	}
}

func (f *familyCounts) stats() FamilyStats {
	return FamilyStats{f.told.Load(), f.kept.Load(), f.late.Load(), f.early.Load()}
}
