package pushback

import (
	"strings"
	"testing"
)

func TestFamilyOf(t *testing.T) {
	for agent, want := range map[string]Family{
		"": FamilyOther,
		"Mozilla/5.0 (X11; Linux x86_64; rv:141.0) Gecko/20100101 Firefox/141.0":   FamilyBrowser,
		"Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)": FamilyBot,
		"curl/7.88.1":                               FamilyCurl,
		"Go-http-client/1.1":                        FamilyGo,
		"python-requests/2.32.3":                    FamilyPython,
		"got (https://github.com/sindresorhus/got)": FamilyNode,
		"axios/1.7.2":                               FamilyNode,
		"okhttp/4.12.0":                             FamilyJava,
		"grpc-go/1.85.0":                            FamilyGRPC,
		"kubelet/v1.34.1 (linux/amd64)":             FamilyKubernetes,
		"Boto3/1.43 md/Botocore#1.43":               FamilyAWS,
		"aws-sdk-go-v2/1.47 ua/2.1":                 FamilyAWS,
		"azsdk-go-azblob/v1.6.0":                    FamilyAzure,
		"Prometheus/3.7.0":                          FamilyMonitor,
		"OTel OTLP Exporter Go/1.47.0":              FamilyMonitor,
		"GuzzleHttp/7":                              FamilyPHP,
		"something of our own":                      FamilyOther,
	} {
		if got := FamilyOf(agent); got != want {
			t.Errorf("%q is %v, want %v", agent, got, want)
		}
	}
	for f := range Family(Families) {
		if strings.Contains(f.String(), "(") {
			t.Errorf("family %d has no name", f)
		}
	}
}

func TestUnknownNames(t *testing.T) {
	for want, got := range map[string]string{
		"Family(17)": Family(Families).String(), "bot": FamilyBot.String(),
		"Class(6)": Class(Classes).String(), "early": Early.String(),
		"HerdKind(3)": HerdKind(3).String(), "periodic": PeriodicHerd.String(),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
