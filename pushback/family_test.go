package pushback

import "testing"

func TestFamilyOf(t *testing.T) {
	for agent, want := range map[string]string{
		"": "other",
		"Mozilla/5.0 (X11; Linux x86_64; rv:141.0) Gecko/20100101 Firefox/141.0":   "browser",
		"Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)": "bot",
		"curl/7.88.1":        "curl",
		"Go-http-client/1.1": "go",
		"got (https://github.com/sindresorhus/got)": "node",
		"axios/1.7.2":                   "node",
		"okhttp/4.12.0":                 "java",
		"kubelet/v1.34.1 (linux/amd64)": "kubernetes",
		"Boto3/1.43 md/Botocore#1.43":   "aws",
		"aws-sdk-go-v2/1.47 ua/2.1":     "aws",
		"azsdk-go-azblob/v1.6.0":        "azure",
		"Prometheus/3.7.0":              "monitor",
		"OTel OTLP Exporter Go/1.47.0":  "monitor",
		"GuzzleHttp/7":                  "php",
		"something of our own":          "other",
	} {
		if got := FamilyOf(agent).String(); got != want {
			t.Errorf("%q is %v, want %v", agent, got, want)
		}
	}
}
