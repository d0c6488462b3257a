package caddymodule

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestStoreURL(t *testing.T) {
	for text, want := range map[string]string{
		"redis://127.0.0.1:6379":                                   `{"type":"redis","address":["127.0.0.1:6379"]}`,
		"redis://:horse%40@h/0":                                    `{"type":"redis","address":["h"],"password":"horse@"}`,
		"rediss://me:horse@a,b:1":                                  `{"type":"redis","address":["a","b:1"],"username":"me","password":"horse","tls":{}}`,
		"redis://[::1]:6379/?prefix=shop&sentinel=main&replicas=3": `{"type":"redis","address":["[::1]:6379"],"sentinel":"main","prefix":"shop","replicas":3}`,
		"rediss://h?ca=/ca.pem&cert=/c.pem&key=/k.pem":             `{"type":"redis","address":["h"],"tls":{"ca":"/ca.pem"},"tls_client":{"certificate":"/c.pem","key":"/k.pem"}}`,
	} {
		s, err := ParseStoreURL(text)
		if got, _ := json.Marshal(s); err != nil || string(got) != want {
			t.Errorf("%s is %s, %v; want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"127.0.0.1:6379":            "store isn't a redis:// or rediss:// URL; use one like redis://127.0.0.1:6379",
		"http://horse@h":            "store isn't a redis:// or rediss:// URL",
		"redis://me:horse%@h":       "store has a username or password in its URL that isn't percent-encoded",
		"redis://me:horse@":         "store isn't a redis:// or rediss:// URL",
		"redis://a,,b":              "store has an empty address",
		"redis://h/1":               "Only database 0 works",
		"redis://h?timeout=1s":      `store has the option "timeout"; use prefix, sentinel, replicas, ca, cert or key`,
		"redis://h?prefix=":         "store: prefix is empty or set twice; use one value",
		"redis://h?replicas=many":   `store: replicas is "many"; use a whole number`,
		"redis://h?prefix=%zz":      "store has options that cannot be read in its URL",
		"redis://me:ho/rse@h:1?a=b": "%2F for /",
		"redis://me:ge?horse@h":     "%3F for ?",
		"redis://ho?rse=horse@h":    "%3F for ?",
		"redis://me:a@b?horse@h":    "%40 for @",
		"redis://h?ca=/horse@b.pem": "%40 for @",
	} {
		if _, err := ParseStoreURL(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "horse") {
			t.Errorf("%s: the error is %v, want %s", text, err, want)
		}
	}
}
