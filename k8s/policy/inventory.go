package policy

import (
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

// Common advice.
const (
	noAuth      = "authenticate in the application, or in a proxy in front of it"
	noBasic     = "authenticate in the application; shield does not read passwords"
	noClientCA  = "shield asks for no client certificates; verify them in a proxy in front of it"
	noWAF       = "shield has no web application firewall; put one in front of it"
	noSnippet   = "shield does not run nginx's directives; look for an annotation that does the same"
	noCanary    = "shield does not split requests; use two hosts, or a service mesh"
	noMirror    = "shield does not copy requests"
	noVerify    = "shield does not verify the certificates of backends; keep them in one trusted network"
	noSticky    = "requests go to any endpoint; keep sessions in a store that the replicas share"
	noBuffer    = "shield streams, and needs no buffers"
	noBalance   = "shield sends each request to the endpoint with the least in flight"
	noRetry     = "shield tries two other endpoints where that is safe"
	noTracing   = "shield has no tracing; its metrics and the access log may do"
	noCORS      = "answer CORS in the application"
	noRedirect  = "redirect in the application"
	noCookie    = "set the right cookie in the application"
	noLog       = "--access-log is for all Ingresses"
	useRate     = "use a rate, which all replicas share"
	askedAlways = "shield asks auth-url about each request, with GET, and sends the URL in X-Original-Url"
)

// nginxTable has every annotation of ingress-nginx 1.x, and of earlier versions those that
// guard. An annotation that filterRows names is Read, whatever its row says here; to
// make another one Read, change its Fate, and name shield's word for it.
var nginxTable = []NginxAnnotation{
	// Limits of clients.
	{"limit-rps", Read, "rate", ""},
	{"limit-rpm", Read, "rate", ""},
	{"limit-connections", Read, "concurrency", ""},
	{"limit-burst-multiplier", Read, "burst", ""},
	{"limit-allowlist", Read, "allow-cidrs", ""},
	{"limit-whitelist", Read, "allow-cidrs", ""},
	{"limit-rate", Changes, "", "shield does not limit bandwidth"},
	{"limit-rate-after", Changes, "", "shield does not limit bandwidth"},
	{"global-rate-limit", Changes, "rate", useRate},
	{"global-rate-limit-window", Changes, "rate", useRate},
	{"global-rate-limit-key", Changes, "key", useRate},
	{"global-rate-limit-ignored-cidrs", Changes, "allow-cidrs", useRate},

	// Access.
	{"whitelist-source-range", Guards, "", "let a network policy or the load balancer choose the clients"},
	{"allowlist-source-range", Guards, "", "let a network policy or the load balancer choose the clients"},
	{"denylist-source-range", Guards, "", "let a network policy or the load balancer choose the clients"},
	{"satisfy", Guards, "", noAuth},
	{"auth-url", Guards, "", noAuth},
	{"auth-signin", Guards, "", noAuth},
	{"auth-signin-redirect-param", Changes, "", askedAlways},
	{"auth-method", Guards, "", noAuth},
	{"auth-request-redirect", Changes, "", askedAlways},
	{"auth-response-headers", Guards, "", noAuth},
	{"auth-proxy-set-headers", Guards, "", noAuth},
	{"auth-snippet", Guards, "", noAuth},
	{"auth-cache-key", Changes, "", askedAlways},
	{"auth-cache-duration", Changes, "", askedAlways},
	{"auth-always-set-cookie", Changes, "", askedAlways},
	{"auth-keepalive", Tunes, "", noBuffer},
	{"auth-keepalive-requests", Tunes, "", noBuffer},
	{"auth-keepalive-share-vars", Tunes, "", noBuffer},
	{"auth-keepalive-timeout", Tunes, "", noBuffer},
	{"enable-global-auth", Guards, "", noAuth},
	{"auth-type", Guards, "", noBasic},
	{"auth-secret", Guards, "", noBasic},
	{"auth-secret-type", Guards, "", noBasic},
	{"auth-realm", Guards, "", noBasic},
	{"auth-tls-secret", Guards, "", noClientCA},
	{"auth-tls-verify-client", Guards, "", noClientCA},
	{"auth-tls-verify-depth", Guards, "", noClientCA},
	{"auth-tls-match-cn", Guards, "", noClientCA},
	{"auth-tls-error-page", Guards, "", noClientCA},
	{"auth-tls-pass-certificate-to-upstream", Guards, "", noClientCA},
	{"enable-modsecurity", Guards, "", noWAF},
	{"enable-owasp-core-rules", Guards, "", noWAF},
	{"modsecurity-snippet", Guards, "", noWAF},
	{"modsecurity-transaction-id", Tunes, "", noWAF},
	{"lua-resty-waf", Guards, "", noWAF},

	// nginx's own language. Those with a directive that guards are Guards, see FateOf.
	{"configuration-snippet", Changes, "", noSnippet},
	{"server-snippet", Changes, "", noSnippet},
	{"stream-snippet", Changes, "", noSnippet},

	// TLS and redirects.
	{"ssl-redirect", Read, "ssl-redirect", ""},
	{"force-ssl-redirect", Read, "ssl-redirect", ""},
	{"ssl-passthrough", Changes, "", "shield ends TLS itself, with the certificate in spec.tls"},
	{"ssl-ciphers", Tunes, "", "shield has the ciphers of Go, which are secure"},
	{"ssl-prefer-server-ciphers", Tunes, "", "shield has the ciphers of Go, which are secure"},
	{"app-root", Changes, "", noRedirect},
	{"permanent-redirect", Changes, "", noRedirect},
	{"permanent-redirect-code", Changes, "", noRedirect},
	{"temporal-redirect", Changes, "", noRedirect},
	{"temporal-redirect-code", Changes, "", noRedirect},
	{"from-to-www-redirect", Changes, "", noRedirect},
	{"preserve-trailing-slash", Tunes, "", "shield's redirects keep the path as it is"},
	{"use-port-in-redirects", Changes, "", "shield redirects to the standard port"},
	{"relative-redirects", Changes, "", noRedirect},

	// Hosts, paths and backends.
	{"server-alias", Changes, "", "write a rule for each host"},
	{"use-regex", Changes, "", "write paths without patterns"},
	{"rewrite-target", Changes, "", "serve the path in the application"},
	{"upstream-vhost", Changes, "", "the backend gets the client's Host"},
	{"x-forwarded-prefix", Changes, "", "set the prefix in the application"},
	{"default-backend", Changes, "", "use spec.defaultBackend"},
	{"custom-http-errors", Changes, "", "errors are passed on as they are"},
	{"disable-proxy-intercept-errors", Tunes, "", "errors are passed on as they are"},
	{"backend-protocol", Read, "", "write shield.herdshield.io/backend-protocol on the Service"}, // the protocols that both speak
	{"service-upstream", Changes, "", "requests go to endpoints, not to the Service's address"},
	{"fastcgi-index", Changes, "", "shield does not speak FastCGI"},
	{"fastcgi-params-configmap", Changes, "", "shield does not speak FastCGI"},
	{"proxy-ssl-secret", Changes, "", noVerify},
	{"proxy-ssl-verify", Changes, "", noVerify},
	{"proxy-ssl-verify-depth", Changes, "", noVerify},
	{"proxy-ssl-name", Changes, "", noVerify},
	{"proxy-ssl-server-name", Changes, "", noVerify},
	{"proxy-ssl-ciphers", Tunes, "", noVerify},
	{"proxy-ssl-protocols", Tunes, "", noVerify},

	// Several backends.
	{"canary", Changes, "", noCanary},
	{"canary-weight", Changes, "", noCanary},
	{"canary-weight-total", Changes, "", noCanary},
	{"canary-by-header", Changes, "", noCanary},
	{"canary-by-header-value", Changes, "", noCanary},
	{"canary-by-header-pattern", Changes, "", noCanary},
	{"canary-by-cookie", Changes, "", noCanary},
	{"mirror-target", Changes, "", noMirror},
	{"mirror-host", Changes, "", noMirror},
	{"mirror-request-body", Changes, "", noMirror},
	{"affinity", Changes, "", noSticky},
	{"affinity-mode", Changes, "", noSticky},
	{"affinity-canary-behavior", Changes, "", noSticky},
	{"session-cookie-name", Changes, "", noSticky},
	{"session-cookie-path", Changes, "", noSticky},
	{"session-cookie-domain", Changes, "", noSticky},
	{"session-cookie-expires", Changes, "", noSticky},
	{"session-cookie-max-age", Changes, "", noSticky},
	{"session-cookie-samesite", Changes, "", noSticky},
	{"session-cookie-secure", Changes, "", noSticky},
	{"session-cookie-partitioned", Changes, "", noSticky},
	{"session-cookie-change-on-failure", Changes, "", noSticky},
	{"session-cookie-conditional-samesite-none", Changes, "", noSticky},
	{"load-balance", Tunes, "", noBalance},
	{"upstream-hash-by", Changes, "", noSticky},
	{"upstream-hash-by-subset", Changes, "", noSticky},
	{"upstream-hash-by-subset-size", Changes, "", noSticky},

	// Headers and bodies.
	{"enable-cors", Changes, "", noCORS},
	{"cors-allow-origin", Changes, "", noCORS},
	{"cors-allow-methods", Changes, "", noCORS},
	{"cors-allow-headers", Changes, "", noCORS},
	{"cors-allow-credentials", Changes, "", noCORS},
	{"cors-expose-headers", Changes, "", noCORS},
	{"cors-max-age", Changes, "", noCORS},
	{"custom-headers", Changes, "response-headers", "write the fields of the ConfigMap in shield's own"},
	{"connection-proxy-header", Tunes, "", "shield passes Upgrade on"},
	{"proxy-cookie-domain", Changes, "", noCookie},
	{"proxy-cookie-path", Changes, "", noCookie},
	{"proxy-redirect-from", Changes, "", noRedirect},
	{"proxy-redirect-to", Changes, "", noRedirect},
	{"proxy-body-size", Changes, "", "limit bodies in the application"},
	{"http2-push-preload", Tunes, "", "browsers no longer take pushes"},

	// Time and repetition.
	{"proxy-connect-timeout", Tunes, "", "an endpoint has 2 s to accept a connection; then another one is tried"},
	{"proxy-read-timeout", Read, "response-timeout", ""},
	{"proxy-send-timeout", Tunes, "response-timeout", "proxy-read-timeout is for sending, too"},
	{"proxy-next-upstream", Tunes, "", noRetry},
	{"proxy-next-upstream-timeout", Tunes, "", noRetry},
	{"proxy-next-upstream-tries", Tunes, "", noRetry},

	// nginx itself.
	{"client-body-buffer-size", Tunes, "", noBuffer},
	{"proxy-buffering", Tunes, "", noBuffer},
	{"proxy-buffers-number", Tunes, "", noBuffer},
	{"proxy-buffer-size", Tunes, "", noBuffer},
	{"proxy-busy-buffers-size", Tunes, "", noBuffer},
	{"proxy-max-temp-file-size", Tunes, "", noBuffer},
	{"proxy-request-buffering", Tunes, "", noBuffer},
	{"proxy-http-version", Tunes, "", "shield speaks HTTP/1.1 to backends, and HTTP/2 where they do"},
	{"enable-access-log", Tunes, "", noLog},
	{"enable-rewrite-log", Tunes, "", noLog},
	{"enable-opentelemetry", Tunes, "", noTracing},
	{"opentelemetry-operation-name", Tunes, "", noTracing},
	{"opentelemetry-trust-incoming-span", Tunes, "", noTracing},
	{"enable-opentracing", Tunes, "", noTracing},
	{"opentracing-trust-incoming-span", Tunes, "", noTracing},
	{"enable-influxdb", Tunes, "", noTracing},
	{"influxdb-measurement", Tunes, "", noTracing},
	{"influxdb-port", Tunes, "", noTracing},
	{"influxdb-host", Tunes, "", noTracing},
	{"influxdb-server-name", Tunes, "", noTracing},
}

// nginxKnown is nginxTable by name, with filterRows.
var nginxKnown = func() map[string]NginxAnnotation {
	known := make(map[string]NginxAnnotation, len(nginxTable))
	for _, a := range nginxTable {
		known[a.Name] = a
	}
	for _, row := range filterRows {
		if row.nginx != "" {
			for _, name := range []string{row.nginx, nginxAliases[row.nginx]} {
				known[name] = NginxAnnotation{Name: name, Word: row.Name}
			}
		}
	}
	return known
}()

// NginxAnnotations returns every annotation of ingress-nginx that shield knows.
func NginxAnnotations() (list []NginxAnnotation) {
	for _, a := range nginxTable {
		list = append(list, nginxKnown[a.Name])
	}
	return list
}

// Names that sound as if they guarded, and directives that do in a snippet.
var (
	guardName      = regexp.MustCompile(`^auth|[-]source-range$|modsecurity|owasp|(^|-)(waf|jwt|oidc|deny|block|secure-verify)`)
	guardDirective = regexp.MustCompile(`(^|[\s;{}'"])(allow|deny|satisfy|internal|limit_except|valid_referers|return\s+4\d\d|auth_\w+|secure_link\w*|modsecurity\w*|ssl_verify_client|(access|rewrite)_by_lua\w*)([\s;{]|$)`)
)

// FateOf returns what becomes of an annotation, whose name has no NginxPrefix, with its
// value. An unknown one Changes something, or Guards if its name sounds like it. One that says
// that there is no guard, does not.
func FateOf(name, value string) NginxAnnotation {
	a, known := nginxKnown[name]
	if !known {
		a = NginxAnnotation{name, Changes, "", "shield does not know it"}
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

// Unread returns the annotations of ingress-nginx that an Ingress has and shield does not
// read, sorted by name. With nginx it reads some. Those that ignore-nginx names are left
// out; if its value is wrong it names none.
func Unread(annotations map[string]string, nginx bool) (list []NginxAnnotation, err error) {
	r := reader{prefix: Prefix, values: annotations}
	var meant []string
	if v, ok := r.get(ignoreNginx); ok {
		meant, _ = parse(&r, ignoreNginx, namesForm, v)
	}
	for key, value := range annotations {
		name, theirs := strings.CutPrefix(key, NginxPrefix)
		if !theirs || slices.Contains(meant, name) {
			continue
		}
		if a := FateOf(name, value); a.Fate != Read || !nginx {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, func(a, b NginxAnnotation) int { return strings.Compare(a.Name, b.Name) })
	return list, r.err()
}

// IsCanary reports whether one of the annotations that are not read makes an Ingress a canary:
// ingress-nginx sends it requests for the paths of another Ingress, and no others.
func IsCanary(annotations map[string]string, unread []NginxAnnotation) bool {
	on, _ := strconv.ParseBool(annotations[NginxPrefix+"canary"])
	return on && slices.ContainsFunc(unread, func(a NginxAnnotation) bool { return a.Name == "canary" })
}
