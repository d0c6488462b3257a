package pushback

import "strings"

// A Family is a kind of client software, by its User-Agent. Clients of one family
// treat Retry-After alike, so promises are counted by it.
type Family uint8

// The families. Their number is fixed: a User-Agent is the client's to choose,
// and must not make metrics grow.
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
	return [Families]string{
		"other", "browser", "curl", "go", "python", "node", "java", "dotnet", "ruby", "php", "rust",
		"grpc", "kubernetes", "aws", "azure", "monitor", "bot",
	}[f]
}

// families are the beginnings of User-Agents, or what they contain where marked
// with *. The first that fits counts.
var families = [...]struct {
	text   string
	family Family
}{
	{"aws-", FamilyAWS}, {"Boto", FamilyAWS}, {"*otocore", FamilyAWS},
	{"*bot", FamilyBot}, {"*Bot", FamilyBot}, {"*crawl", FamilyBot}, {"*spider", FamilyBot},
	{"Mozilla/", FamilyBrowser}, {"Opera/", FamilyBrowser},
	{"curl/", FamilyCurl}, {"Wget/", FamilyCurl}, {"libcurl", FamilyCurl},
	{"grpc-", FamilyGRPC},
	{"kube", FamilyKubernetes}, {"helm", FamilyKubernetes}, {"*client-go", FamilyKubernetes}, {"*kubernetes/", FamilyKubernetes},
	{"azsdk", FamilyAzure}, {"*azure", FamilyAzure}, {"*Azure", FamilyAzure},
	{"Prometheus/", FamilyMonitor}, {"OTel", FamilyMonitor}, {"*OpenTelemetry", FamilyMonitor}, {"*otel", FamilyMonitor},
	{"Fluent", FamilyMonitor}, {"vector/", FamilyMonitor}, {"Grafana", FamilyMonitor}, {"Blackbox", FamilyMonitor},
	{"python", FamilyPython}, {"Python", FamilyPython}, {"aiohttp", FamilyPython}, {"httpx", FamilyPython}, {"OpenAI/Python", FamilyPython},
	{"axios", FamilyNode}, {"node", FamilyNode}, {"got ", FamilyNode}, {"got/", FamilyNode}, {"ky", FamilyNode}, {"undici", FamilyNode}, {"OpenAI/JS", FamilyNode},
	{"Java", FamilyJava}, {"okhttp", FamilyJava}, {"Apache-HttpClient", FamilyJava}, {"Jetty", FamilyJava}, {"ReactorNetty", FamilyJava}, {"google-http-java", FamilyJava},
	{"*.NET", FamilyDotNet}, {"dotnet", FamilyDotNet}, {"RestSharp", FamilyDotNet},
	{"Ruby", FamilyRuby}, {"Faraday", FamilyRuby}, {"rest-client", FamilyRuby},
	{"GuzzleHttp", FamilyPHP}, {"PHP", FamilyPHP}, {"Symfony", FamilyPHP},
	{"reqwest", FamilyRust}, {"hyper", FamilyRust}, {"ureq", FamilyRust},
	{"Go-http-client", FamilyGo}, {"go-", FamilyGo}, {"Go ", FamilyGo}, {"*go-resty", FamilyGo}, {"*Go/", FamilyGo},
}

// FamilyOf returns the family of a User-Agent. It looks at its first 256 bytes.
func FamilyOf(agent string) Family {
	if len(agent) > 256 {
		agent = agent[:256]
	}
	for _, f := range families {
		if inner, ok := strings.CutPrefix(f.text, "*"); ok {
			if strings.Contains(agent, inner) {
				return f.family
			}
		} else if strings.HasPrefix(agent, f.text) {
			return f.family
		}
	}
	return FamilyOther
}
