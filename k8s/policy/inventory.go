package policy

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Fate is what becomes of an annotation of ingress-nginx, in the order of how much its
// owner should care.
type Fate uint8

// The fates.
const (
	Read    Fate = iota // with --nginx-annotations it has ingress-nginx's meaning
	Tunes               // it only tunes nginx, or its work is done here anyway
	Changes             // without it, something else is served or protected
	Guards              // without it, requests get in that should not, or reach what does not understand them
)

// A NginxAnnotation is an annotation of ingress-nginx, and what to do about it.
type NginxAnnotation struct {
	Name string // without NginxPrefix
	Fate
	Word   string // shield's annotation for the same, without Prefix; "": there is none
	Advice string // a clause, for people
}

// nginxTable has every annotation of ingress-nginx 1.x, and of earlier versions those that
// guard, but for those of filterRows, which are Read.
var nginxTable = []struct {
	names string
	Fate
	word, advice string // as in NginxAnnotation
}{
	{"limit-rps limit-rpm", Read, "rate", ""},
	{"limit-connections", Read, "concurrency", ""},
	{"limit-burst-multiplier", Read, "burst", ""},
	{"limit-allowlist limit-whitelist", Read, "allow-cidrs", ""},
	{"ssl-redirect force-ssl-redirect", Read, "ssl-redirect", ""},
	{"backend-protocol", Read, "", "write shield.herdshield.io/backend-protocol on the Service"},
	{"satisfy auth-method auth-proxy-set-headers auth-snippet enable-global-auth", Guards, "", "authenticate in the application, or in a proxy in front of it"},
	{"auth-type auth-secret auth-secret-type auth-realm", Guards, "", "shield does not check passwords; authenticate in the application"},
	{"auth-tls-secret auth-tls-verify-client auth-tls-verify-depth auth-tls-match-cn auth-tls-error-page auth-tls-pass-certificate-to-upstream", Guards, "", "shield does not ask for client certificates; verify them in a proxy in front of it"},
	{"enable-modsecurity enable-owasp-core-rules modsecurity-snippet lua-resty-waf", Guards, "", "shield has no web application firewall; put one in front of it"},
	{"limit-rate limit-rate-after", Changes, "", "shield does not limit bandwidth"},
	{"global-rate-limit global-rate-limit-window", Changes, "rate", "use rate, whose limit holds across replicas"},
	{"global-rate-limit-key", Changes, "key", "use rate, whose limit holds across replicas"},
	{"global-rate-limit-ignored-cidrs", Changes, "allow-cidrs", "use rate, whose limit holds across replicas"},
	{"auth-signin-redirect-param auth-request-redirect auth-cache-key auth-cache-duration auth-always-set-cookie", Changes, "", "shield sends auth-url a GET for each request, with the URL in X-Original-Url"},
	{"configuration-snippet server-snippet stream-snippet", Changes, "", "shield does not run nginx directives; look for an annotation that does the same"},
	{"ssl-passthrough", Changes, "", "shield terminates TLS itself, using the certificate in spec.tls"},
	{"temporal-redirect-code relative-redirects proxy-redirect-from proxy-redirect-to", Changes, "", "redirect in the application"},
	{"use-port-in-redirects", Changes, "", "shield redirects to the standard port"},
	{"server-alias", Changes, "", "write a rule for each host"},
	{"custom-http-errors", Changes, "", "shield passes the backend's errors on unchanged"},
	{"service-upstream", Changes, "", "shield sends requests to endpoints, not to the Service's address"},
	{"fastcgi-index fastcgi-params-configmap", Changes, "", "shield does not speak FastCGI"},
	{"proxy-ssl-secret proxy-ssl-verify proxy-ssl-verify-depth proxy-ssl-name proxy-ssl-server-name", Changes, "", "shield does not verify the certificates of backends; keep them in one trusted network"},
	{"canary canary-weight canary-weight-total canary-by-header canary-by-header-value canary-by-header-pattern canary-by-cookie", Changes, "", "shield does not split requests; use two hosts, or a service mesh"},
	{"mirror-target mirror-host mirror-request-body", Changes, "", "shield does not copy requests"},
	{"affinity affinity-mode affinity-canary-behavior session-cookie-name session-cookie-path session-cookie-domain session-cookie-expires " +
		"session-cookie-max-age session-cookie-samesite session-cookie-secure session-cookie-partitioned session-cookie-change-on-failure " +
		"session-cookie-conditional-samesite-none upstream-hash-by upstream-hash-by-subset upstream-hash-by-subset-size", Changes, "", "shield has no sticky sessions; keep sessions in a store that your pods share"},
	{"custom-headers", Changes, "response-headers", "list the headers of the ConfigMap in shield's own"},
	{"proxy-cookie-domain proxy-cookie-path", Changes, "", "set the cookie correctly in the application"},
	{"auth-keepalive auth-keepalive-requests auth-keepalive-share-vars auth-keepalive-timeout client-body-buffer-size proxy-buffering proxy-buffers-number " +
		"proxy-buffer-size proxy-busy-buffers-size proxy-max-temp-file-size proxy-request-buffering", Tunes, "", "shield streams, so it needs no buffers"},
	{"modsecurity-transaction-id", Tunes, "", "shield has no web application firewall; put one in front of it"},
	{"ssl-ciphers ssl-prefer-server-ciphers", Tunes, "", "shield uses Go's ciphers, which are secure"},
	{"preserve-trailing-slash", Tunes, "", "shield's redirects keep the path unchanged"},
	{"disable-proxy-intercept-errors", Tunes, "", "shield passes the backend's errors on unchanged"},
	{"proxy-ssl-ciphers proxy-ssl-protocols", Tunes, "", "shield does not verify the certificates of backends; keep them in one trusted network"},
	{"load-balance", Tunes, "", "shield picks the less busy of two random endpoints"},
	{"connection-proxy-header", Tunes, "", "shield passes Upgrade on"},
	{"http2-push-preload", Tunes, "", "browsers no longer support HTTP/2 push"},
	{"proxy-connect-timeout", Tunes, "", "shield tries another endpoint if one does not accept a connection within 2 s"},
	{"proxy-send-timeout", Tunes, "response-timeout", "shield applies proxy-read-timeout to sending, too"},
	{"proxy-next-upstream proxy-next-upstream-timeout proxy-next-upstream-tries", Tunes, "", "shield tries up to two other endpoints where that is safe"},
	{"proxy-http-version", Tunes, "", "shield speaks HTTP/1.1 to backends, and HTTP/2 where they do"},
	{"enable-access-log enable-rewrite-log", Tunes, "", "use --access-log, which covers all Ingresses"},
	{"enable-opentelemetry opentelemetry-operation-name opentelemetry-trust-incoming-span enable-opentracing opentracing-trust-incoming-span enable-influxdb " +
		"influxdb-measurement influxdb-port influxdb-host influxdb-server-name", Tunes, "", "shield has no tracing; use its metrics or the access log"},
}

// nginxKnown is nginxTable by name, with filterRows.
var nginxKnown = func() map[string]NginxAnnotation {
	known := make(map[string]NginxAnnotation, len(nginxTable))
	for _, row := range nginxTable {
		for name := range strings.FieldsSeq(row.names) {
			known[name] = NginxAnnotation{name, row.Fate, row.word, row.advice}
		}
	}
	for _, row := range filterRows {
		if row.nginx != "" {
			known[row.nginx] = NginxAnnotation{Name: row.nginx, Word: row.Name}
		}
		if alias := nginxAliases[row.nginx]; alias != "" {
			known[alias] = NginxAnnotation{Name: alias, Word: row.Name}
		}
	}
	return known
}()

// NginxAnnotations returns every annotation of ingress-nginx that shield knows, by name.
func NginxAnnotations() (list []NginxAnnotation) {
	for _, name := range slices.Sorted(maps.Keys(nginxKnown)) {
		list = append(list, nginxKnown[name])
	}
	return list
}

// Names that sound as if they guarded, and directives that do in a snippet: one that sends some
// requests elsewhere for now, with 302, may be a login.
var (
	guardName      = regexp.MustCompile(`^auth|[-]source-range$|modsecurity|owasp|(^|-)(waf|jwt|oidc|deny|block|secure-verify)`)
	guardDirective = regexp.MustCompile(`(^|[\s;{}'"])(allow|deny|satisfy|internal|limit_except|valid_referers|return\s+["']?[45]\d\d["']?|auth_\w+|secure_link\w*|modsecurity\w*|ssl_verify_client|(access|rewrite)_by_lua\w*)([\s;{]|$)` +
		`|\bif\s*\(([^{}]|\{[\d,]+\})*\{([^}]|[\d,]\})*\b(return\s+["']?(30[237]|https?:|[$])|rewrite\s+([^;]*\sredirect\b|\S+\s+["']?(https?:|[$]scheme)[^\s;]*\s*;))`)
)

// FateOf returns what becomes of an annotation, whose name has no NginxPrefix, with its
// value. An unknown one Changes something, or Guards if its name sounds like it. One that says
// that there is no guard, does not.
func FateOf(name, value string) NginxAnnotation {
	a, known := nginxKnown[name]
	if !known {
		a = NginxAnnotation{name, Changes, "", "unknown to shield"}
		if guardName.MatchString(name) {
			a.Fate = Guards
		}
	}
	value = strings.TrimSpace(value)
	on, err := strconv.ParseBool(value)
	switch {
	case name == "backend-protocol" && slices.Contains([]string{"FCGI", "AJP", "AUTO_HTTP"}, strings.ToUpper(value)):
		a.Fate = Guards
	case name == "backend-protocol" && value != "" && nginxProtocols[strings.ToUpper(value)] == "":
		a.Fate = Changes // ingress-nginx takes it for HTTP
	case a.Fate == Guards && (value == "" || err == nil && !on || value == "off"):
		a.Fate = Tunes
	case strings.HasSuffix(name, "-snippet") && a.Fate == Changes && guardDirective.MatchString(value):
		a.Fate = Guards
	}
	return a
}

// Heeded returns the annotations of an Ingress without those of ingress-nginx that
// ignore-nginx names. If its value is wrong it names none.
func Heeded(annotations map[string]string) (map[string]string, error) {
	r := reader{prefix: Prefix, values: annotations}
	v, ok := r.get(ignoreNginx)
	if !ok {
		return annotations, nil
	}
	meant, _ := parse(&r, ignoreNginx, namesForm, v)
	heeded := maps.Clone(annotations)
	for _, name := range meant {
		delete(heeded, NginxPrefix+name)
	}
	return heeded, r.err()
}

// Unread returns the annotations of ingress-nginx that an Ingress has and shield does not
// read, sorted by name. With nginx it reads some.
func Unread(heeded map[string]string, nginx bool) (list []NginxAnnotation) {
	for key, value := range heeded {
		if name, theirs := strings.CutPrefix(key, NginxPrefix); theirs {
			if a := FateOf(name, value); a.Fate != Read || !nginx {
				list = append(list, a)
			}
		}
	}
	slices.SortFunc(list, func(a, b NginxAnnotation) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// IsCanary reports whether an Ingress is a canary: ingress-nginx sends it requests for the
// paths of another Ingress, and no others.
func IsCanary(heeded map[string]string) bool {
	on, _ := strconv.ParseBool(heeded[NginxPrefix+"canary"])
	return on
}
