// Package clientkey reads the templates that tell clients apart: text with Caddy's
// placeholders in braces. It does not import Caddy, so those who check templates need not.
package clientkey

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The placeholders that the rest of shield names.
const (
	ClientIP     = "http.vars.client_ip"
	RemoteHost   = "http.request.remote.host"
	HeaderPrefix = "http.request.header."
	CookiePrefix = "http.request.cookie."
	QueryPrefix  = "http.request.uri.query."
	JSONPrefix   = "shield.json." // then the path of a field in the request's body, which shield looks at itself

	Default = "{" + ClientIP + "}" // the template where none is set
)

// A Part of a template is a literal text, or the name of a placeholder.
type Part struct {
	Text          string
	IsPlaceholder bool
}

// Parse returns the parts of a template. It does not check the names. A word without a
// placeholder is an error: a template of such words would be one bucket for all clients.
func Parse(template string) (parts []Part, err error) {
	for word := range strings.FieldsSeq(template) {
		if !strings.ContainsAny(word, "{}") {
			return nil, fmt.Errorf("%q has no placeholder; use one in braces, like {%sX-Api-Key}", word, HeaderPrefix)
		}
	}
	for rest := template; rest != ""; {
		literal, after, found := strings.Cut(rest, "{")
		if strings.Contains(literal, "}") {
			return nil, errors.New("unexpected }; put placeholders in braces")
		}
		if literal != "" {
			parts = append(parts, Part{Text: literal})
		}
		if !found {
			break
		}
		name, after, closed := strings.Cut(after, "}")
		if !closed || strings.Contains(name, "{") {
			return nil, errors.New("unclosed {; put placeholders in braces")
		}
		parts = append(parts, Part{name, true})
		rest = after
	}
	return parts, nil
}

// Placeholders that Caddy fills in from a request before it is handled. Those that differ with
// every request or connection are left out: each value would get its own bucket. So is the
// body: a limit must not wait for all of it.
var (
	Exact = []string{ // by its whole name
		ClientIP,
		"http.request.method", "http.request.scheme", "http.request.proto", "http.request.proto_name",
		"http.request.host", "http.request.port", "http.request.hostport",
		"http.request.local", "http.request.local.host", "http.request.local.port",
		RemoteHost,
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
	prefixes = []string{
		CookiePrefix, QueryPrefix, "http.request.remote.host/",
		"http.request.tls.client.san.dns_names", "http.request.tls.client.san.emails",
		"http.request.tls.client.san.ips", "http.request.tls.client.san.uris",
	}
	indexed = []string{"http.request.host.labels.", "http.request.uri.path.", "http.request.orig_uri.path."}
)

// OfRequest reports whether a request fills in the placeholder, and it can tell clients apart.
func OfRequest(name string) bool {
	for _, prefix := range indexed {
		if index, ok := strings.CutPrefix(name, prefix); ok {
			if _, err := strconv.ParseUint(index, 10, 8); err == nil {
				return true
			}
		}
	}
	if header, ok := strings.CutPrefix(name, HeaderPrefix); ok {
		// Caddy deletes headers with an underscore or a dot before any handler.
		return header != "" && !strings.ContainsAny(header, "_.")
	}
	return slices.Contains(Exact, name) || HasPrefix(name, prefixes)
}

// credentialWords are what the name of a header, parameter or field has, between dashes or underscores, whose
// value proves who its client is.
var credentialWords = []string{
	"authorization", "auth", "cookie", "key", "apikey", "token", "jwt", "secret", "password", "session", "sessionid", "sid", "signature", "credential", "credentials",
}

// IsCredential reports whether the value of a placeholder proves who the client is, so that a person who
// sees it could pass for the client, or is a claim in such a value. A query has all parameters in it.
func IsCredential(placeholder string) bool {
	switch {
	case HasPrefix(placeholder, []string{HeaderPrefix, QueryPrefix, JSONPrefix}):
		words := strings.FieldsFunc(strings.ToLower(placeholder), func(r rune) bool { return r == '-' || r == '_' || r == '.' })
		return slices.ContainsFunc(words, func(word string) bool { return slices.Contains(credentialWords, word) })
	case strings.HasPrefix(placeholder, CookiePrefix), strings.HasPrefix(placeholder, "http.auth."):
		return true
	}
	last := placeholder[strings.LastIndexByte(placeholder, '.')+1:]
	return strings.HasPrefix(placeholder, "http.request.") && (strings.HasSuffix(last, "uri") || strings.HasSuffix(last, "query")) || last == "uri_escaped" || last == "query_escaped"
}

// HasPrefix reports whether name begins with a prefix, and goes on if that ends with a dot.
func HasPrefix(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool {
		return strings.HasPrefix(name, prefix) && (len(name) > len(prefix) || !strings.HasSuffix(prefix, "."))
	})
}
