package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxKey bounds a key's template, in bytes. Ours.
const maxKey = 256

// What a key may have: those placeholders of a zone's key in the Caddyfile that say
// something of the request. Others would let whoever may write an Ingress read the
// controller's environment, or are not there.
var (
	exactPlaceholders = []string{
		"http.vars.client_ip",
		"http.request.method", "http.request.scheme", "http.request.proto", "http.request.proto_name",
		"http.request.host", "http.request.port", "http.request.hostport",
		"http.request.local", "http.request.local.host", "http.request.local.port",
		"http.request.remote.host",
		"http.request.uri", "http.request.uri_escaped", "http.request.uri.path", "http.request.uri.path_escaped",
		"http.request.uri.query", "http.request.uri.query_escaped", "http.request.uri.prefixed_query",
		"http.request.orig_method", "http.request.orig_uri", "http.request.orig_uri.path",
		"http.request.orig_uri.query", "http.request.orig_uri.prefixed_query",
		"http.request.tls.version", "http.request.tls.cipher_suite", "http.request.tls.resumed", "http.request.tls.proto",
		"http.request.tls.proto_mutual", "http.request.tls.server_name", "http.request.tls.ech",
		"http.request.tls.client.fingerprint", "http.request.tls.client.public_key", "http.request.tls.client.public_key_sha256",
		"http.request.tls.client.certificate_pem", "http.request.tls.client.certificate_der_base64",
		"http.request.tls.client.issuer", "http.request.tls.client.serial", "http.request.tls.client.subject",
	}
	placeholderPrefixes = []string{
		"http.request.cookie.", "http.request.uri.query.", "http.request.remote.host/",
		"http.request.tls.client.san.dns_names", "http.request.tls.client.san.emails",
		"http.request.tls.client.san.ips", "http.request.tls.client.san.uris",
	}
	indexedPlaceholders = []string{"http.request.host.labels.", "http.request.uri.path.", "http.request.orig_uri.path."}
)

const headerPrefix = "http.request.header."

// checkKey returns an error unless template tells clients apart.
func checkKey(template string) error {
	if template == "" {
		return errors.New("it is empty; want a placeholder like {http.request.header.X-Api-Key}, or none of this annotation for the client's address")
	}
	if len(template) > maxKey {
		return fmt.Errorf("it has %d bytes; want at most %d", len(template), maxKey)
	}
	for rest := template; ; {
		literal, after, found := strings.Cut(rest, "{")
		if strings.Contains(literal, "}") {
			return errors.New("it has a } that closes nothing; want placeholders in braces")
		}
		if !found {
			return nil
		}
		name, after, closed := strings.Cut(after, "}")
		if !closed || strings.Contains(name, "{") {
			return errors.New("it has a { that is not closed; want placeholders in braces")
		}
		if !known(name) {
			return fmt.Errorf("placeholder {%s} is not for a key here; want {http.vars.client_ip}, or one of Caddy's {http.request.*} that does not differ with every request", clip(name))
		}
		rest = after
	}
}

func known(name string) bool {
	for _, prefix := range placeholderPrefixes {
		if strings.HasPrefix(name, prefix) && (len(name) > len(prefix) || prefix[len(prefix)-1] != '.') {
			return true
		}
	}
	for _, prefix := range indexedPlaceholders {
		if index, ok := strings.CutPrefix(name, prefix); ok {
			if _, err := strconv.ParseUint(index, 10, 8); err == nil {
				return true
			}
		}
	}
	if header, ok := strings.CutPrefix(name, headerPrefix); ok {
		// Caddy deletes headers with an underscore or a dot before any handler.
		return header != "" && !strings.ContainsAny(header, "_.")
	}
	return slices.Contains(exactPlaceholders, name)
}
