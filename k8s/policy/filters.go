package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"net/textproto"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Filters are what an Ingress has done to its requests and answers besides limiting them.
// The zero Filters does nothing. It is immutable once it has been handed on.
type Filters struct {
	// AllowFrom are the addresses of the clients that are served, unless it is nil; of those,
	// DenyFrom are not. Both are in the order that parsing makes. One that is empty, but not
	// nil, is wrong: no client is served.
	AllowFrom, DenyFrom []netip.Prefix

	// RewriteTarget takes the place of the whole path, RewritePrefix of the part that the
	// rule names. At most one is set. $1 to $9 in RewriteTarget are groups of a pattern.
	RewriteTarget, RewritePrefix string

	// Regex has the paths of the rules read as regular expressions.
	Regex bool

	// BodySize is how many bytes the body of a request may have. 0: the default of the
	// controller; NoBodySize: any number.
	BodySize int64

	// Timeouts are those of its requests. 0: the default of the controller; NoTimeout: any
	// time.
	Timeouts Timeouts

	// Redirect is where all requests are redirected, with RedirectCode; "": nowhere. If
	// it ends in $request_uri, the path and query of the request take the place of that.
	Redirect     string
	RedirectCode int

	// RedirectHost redirects all requests to another host, with 308; "": none.
	RedirectHost string

	// AppRoot is where requests for / are redirected; "": nowhere.
	AppRoot string

	// WWW has requests for the hosts of the Ingress with "www." before them redirected to
	// those without, or the other way round.
	WWW bool

	// HSTS is the Strict-Transport-Security of responses over TLS; "" and "off": none.
	HSTS string

	// CORS says which web pages of other sites may read answers; nil: it is left to the
	// backend.
	CORS *CORS

	// Headers are set in all responses, in place of the backend's; an empty Value removes
	// the backend's.
	Headers []Header

	// Host is the Host that the backend gets; "": the client's. ForwardedPrefix is
	// its X-Forwarded-Prefix; "": none.
	Host, ForwardedPrefix string

	// DefaultBackend is the Service, in the namespace of the Ingress, that gets the
	// requests of rules whose own has no endpoint; "": they are answered 503.
	DefaultBackend string

	// Auth decides whether requests are let in; nil: all are.
	Auth *Auth
}

// A Header is a field of responses.
type Header struct{ Name, Value string } // the Name is canonical

// NoBodySize is the BodySize that is no limit.
const NoBodySize = -1

// A filterRow is an annotation of an Ingress that sets a filter.
type filterRow struct {
	Annotation
	nginx string // its name with NginxPrefix; "": ingress-nginx has no such annotation
	set   func(r *reader, name, text string, f *Filters)
}

// filterOf makes a filterRow. set is not called for a value that is an error.
func filterOf[V any](a Annotation, nginx string, of form[V], set func(f *Filters, v V) error) filterRow {
	return filterRow{rowApart[Filters](a, of).Annotation, nginx, func(r *reader, name, text string, f *Filters) {
		if v, ok := parse(r, name, of, text); ok {
			if err := set(f, v); err != nil {
				r.bad(name, text, err)
			}
		}
	}}
}

// filterRows are the annotations of an Ingress that set filters, in the order in which they
// are read.
var filterRows = []filterRow{
	sourcesOf(Annotation{Name: "allowlist-source-range", Default: "all clients", Meaning: "Serve only clients with these addresses. All others get 403"},
		func(f *Filters, list []netip.Prefix) { f.AllowFrom = list }),
	sourcesOf(Annotation{Name: "denylist-source-range", Default: "none", Meaning: "Reject clients with these addresses, with 403"},
		func(f *Filters, list []netip.Prefix) { f.DenyFrom = list }),
	filterOf(Annotation{Name: "rewrite-target", Default: "the client's path", Meaning: "Path sent to the backend instead of the client's. `$1` to `$9` are groups of the rule's [regular expression](#regular-expressions)"},
		"rewrite-target", matchForm("a path without a query, like /$1", "`/`, `/v2/$1`; up to 512 bytes", `[/$][^\x00- ?#\x7f]*`, 512),
		func(f *Filters, v string) error { f.RewriteTarget, f.RewritePrefix = v, ""; return nil }),
	filterOf(Annotation{Name: "rewrite-prefix", Default: "not replaced", Meaning: "Replacement for the part of the path that the rule matches. With `/v2`, a rule for `/api` passes `/api/x` on as `/v2/x`"},
		"", matchForm("a path without a query, like /v2", "`/`, `/v2`; up to 512 bytes", `/[^\x00- ?#$\x7f]*`, 512),
		func(f *Filters, v string) error { f.RewriteTarget, f.RewritePrefix = "", v; return nil }),
	filterOf(Annotation{Name: "use-regex", Default: "`false`; with `rewrite-target`, `true` for paths that look like a regular expression", Meaning: "Treat paths other than `Exact` ones as [regular expressions](#regular-expressions)"},
		"use-regex", redirectForm, func(f *Filters, v string) error { f.Regex = v == "true"; return nil }),
	filterOf(Annotation{Name: "body-size", Default: "`--body-size`", Meaning: "Largest [request body](#body-size), in bytes, or with `k`, `m`, or `g` (powers of 1,024). Larger ones get 413"},
		"proxy-body-size", sizeForm, func(f *Filters, v int64) error { f.BodySize = v; return nil }),
	filterOf(Annotation{Name: "response-timeout", Default: "`--response-timeout`: `60s`", Meaning: "[How long to wait](#timeouts) for the backend: first until its response starts, then for each further part"},
		"proxy-read-timeout", timeoutForm, func(f *Filters, v time.Duration) error { f.Timeouts.Response = v; return nil }),
	filterOf(Annotation{Name: "backend-timeout", Default: "`--backend-timeout`: none", Meaning: "How long one attempt at a backend can take, from start to end"},
		"", timeoutForm, func(f *Filters, v time.Duration) error { f.Timeouts.Backend = v; return nil }),
	filterOf(Annotation{Name: "request-timeout", Default: "`--request-timeout`: none", Meaning: "How long a request can take, from its first byte to the last byte of the response"},
		"", timeoutForm, func(f *Filters, v time.Duration) error { f.Timeouts.Request = v; return nil }),
	filterOf(Annotation{Name: "permanent-redirect", Default: "no redirect", Meaning: "[Redirect](#redirects) all requests to this URL. A final `$request_uri` stands for the request's path and query"},
		"permanent-redirect", urlForm, func(f *Filters, v string) error { f.RedirectCode = 301; return f.redirect(v) }),
	filterOf(Annotation{
		Name: "permanent-redirect-code", Needs: [2]string{"permanent-redirect", "https://example.com/"},
		Meaning: "Status code of `permanent-redirect`",
		Default: "`301`",
	}, "permanent-redirect-code", wordForm("301", "302", "303", "307", "308"),
		func(f *Filters, v string) (err error) { f.RedirectCode, err = strconv.Atoi(v); return err }),
	filterOf(Annotation{Name: "temporal-redirect", Default: "no redirect", Meaning: "Same as `permanent-redirect`, but with 302. If both are set, this one wins"},
		"temporal-redirect", urlForm, func(f *Filters, v string) error { f.RedirectCode = 302; return f.redirect(v) }),
	filterOf(Annotation{Name: "app-root", Default: "no redirect", Meaning: "Redirect requests for `/` to this path, with 302"},
		"app-root", matchForm("a path like /app", "`/app`; up to 512 bytes", `/[^\x00- /\x7f][^\x00- \x7f]*`, 512),
		func(f *Filters, v string) error { f.AppRoot = v; return nil }),
	filterOf(Annotation{Name: "from-to-www-redirect", Default: "`false`", Meaning: "Redirect `www.example.com` to the Ingress's host `example.com`, or vice versa, with 308. A host that has its own rule isn't redirected"},
		"from-to-www-redirect", redirectForm, func(f *Filters, v string) error { f.WWW = v == "true"; return nil }),
	filterOf(Annotation{Name: "hsts", Default: "none; with `--nginx-annotations`, `max-age=31536000; includeSubDomains`", Meaning: "`Strict-Transport-Security` header of responses over TLS, for hosts in `spec.tls`"},
		"", matchForm("off, or max-age with a number of seconds, then includeSubDomains and preload", "`max-age=31536000`, `max-age=31536000; includeSubDomains; preload`, `off`",
			`off|max-age=[0-9]{1,10}(; ?includeSubDomains)?(; ?preload)?`, 64), func(f *Filters, v string) error { f.HSTS = v; return nil }),
	corsOf("enable-cors", "Respond to [CORS preflights](#cors), and let other sites read responses", "`false`", redirectForm, func(c *CORS, v string) {
		c.Off = v != "true"
	}),
	corsOf("cors-allow-origin", "Allowed origins, separated by commas. `*` stands for one label, or, on its own, for all origins", "`*`",
		matchForm("origins like https://*.example.com, separated by commas, or *", "`*`, `https://a.example.com, https://*.example.org:8443`; up to 2,048 bytes",
			origin+`( *, *`+origin+`)*( *,)? *`, 2048), func(c *CORS, v string) { c.Origins = fieldsOf(strings.ToLower(v)) }),
	corsOf("cors-allow-methods", "Methods that allowed origins can use", "`"+corsMethods+"`", tokensForm("`GET, POST`"), func(c *CORS, v string) { c.Methods = v }),
	corsOf("cors-allow-headers", "Request headers that allowed origins can send", "as in ingress-nginx: `Authorization`, `Content-Type`, `Range`, and some more",
		tokensForm("`Content-Type, X-Id`, `*`"), func(c *CORS, v string) { c.Headers = v }),
	corsOf("cors-allow-credentials", "Let allowed origins send cookies. Browsers ignore it while all origins are allowed", "`true`", redirectForm, func(c *CORS, v string) { c.NoCredentials = v != "true" }),
	corsOf("cors-expose-headers", "Response headers that allowed origins can read, besides those of a rejection", "none", tokensForm("`X-Id, X-Total`"),
		func(c *CORS, v string) { c.Expose = v }),
	corsOf("cors-max-age", "Seconds for which browsers cache a preflight", "`1728000`", matchForm("a number of seconds", "`600`, `-1`", `-?[0-9]{1,9}`, 10), func(c *CORS, v string) { c.MaxAge = v }),
	filterOf(Annotation{Name: "response-headers", Default: "none", Meaning: "[Headers](#headers) to set in all responses, including shield's own, one per line. A name without a value removes the header"},
		"", headersForm, func(f *Filters, v []Header) error { f.Headers = v; return nil }),
	filterOf(Annotation{Name: "upstream-vhost", Default: "the client's", Meaning: "`Host` header sent to the backend"},
		"upstream-vhost", matchForm("a host, with or without a port", "`app.internal`, `app:8080`; up to 255 bytes", `[A-Za-z0-9._-]+(:[0-9]{1,5})?`, 255),
		func(f *Filters, v string) error { f.Host = v; return nil }),
	filterOf(Annotation{Name: "x-forwarded-prefix", Default: "none", Meaning: "`X-Forwarded-Prefix` header sent to the backend"},
		"x-forwarded-prefix", matchForm("a path like /app", "`/app`; up to 512 bytes", `/[^\x00- \x7f]*`, 512),
		func(f *Filters, v string) error { f.ForwardedPrefix = v; return nil }),
	filterOf(Annotation{Name: "default-backend", Default: "none: 503", Meaning: "Service that gets the requests while the rule's own Service has no ready pod. It must be in the same namespace, and gets them on its first port"},
		"default-backend", matchForm("the name of a Service", "`sorry`", `[a-z]([-a-z0-9]{0,61}[a-z0-9])?`, 63), func(f *Filters, v string) error { f.DefaultBackend = v; return nil }),
	authOf("auth-url", "URL of the [service that decides](#authentication) whether to let a request in", "none", authForm, func(a *Auth, v string) { a.URL = v }),
	authOf("auth-signin", "Where to send users who aren't signed in", "no redirect, just 401", signinForm, func(a *Auth, v string) { a.Signin = v }),
	authOf("auth-response-headers", "Headers to copy from the authentication service's response into the backend's request", "none",
		matchForm("names of fields, separated by commas", "`X-Auth-Request-User, X-Auth-Request-Email`; up to 1,024 bytes", `[A-Za-z0-9_-]+( *, *[A-Za-z0-9_-]+)*`, 1024), func(a *Auth, v string) {
			a.Headers = nil
			for _, name := range fieldsOf(v) {
				a.Headers = append(a.Headers, textproto.CanonicalMIMEHeaderKey(name))
			}
		}),
}

// maxHeaders and maxHeaderBytes bound the fields of one Ingress. Ours: people have ten.
const (
	maxHeaders     = 32
	maxHeaderBytes = 4096
)

// framing are the fields that say where a response ends, or that are shield's own.
var framing = []string{"Connection", "Content-Encoding", "Content-Length", "Content-Range", "Date", "Keep-Alive", "Proxy-Connection", "Retry-After", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

const headerLine = `[A-Za-z0-9!#$%&*+.^_~-]+:[^\x00-\x08\x0a-\x1f\x7f]*`

var headersForm = func() form[[]Header] {
	lines := matchForm("lines like X-Frame-Options: DENY", "`X-Frame-Options: DENY`, `X-Powered-By:`; up to 32 lines", headerLine+`(\n`+headerLine+`)*\n?`, maxHeaderBytes)
	f := form[[]Header]{want: lines.want, rule: lines.rule, page: lines.page}
	f.parse = func(text string) (list []Header, err error) {
		if _, err := lines.parse(text); err != nil {
			return nil, err
		}
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(line, ":")
			name = textproto.CanonicalMIMEHeaderKey(name)
			if slices.Contains(framing, name) {
				return nil, fmt.Errorf("%s is not for applications to set", name)
			}
			list = append(list, Header{name, strings.TrimSpace(value)})
		}
		if len(list) > maxHeaders {
			return nil, fmt.Errorf("it has %d headers; use at most %d", len(list), maxHeaders)
		}
		return list, nil
	}
	return f
}()

// NginxHSTS is the HSTS that ingress-nginx has by default.
const NginxHSTS = "max-age=31536000; includeSubDomains"

// requestURI ends a redirect to the path and query of the request.
const requestURI = "$request_uri"

var urlForm = matchForm("a URL of http or https, like https://example.com/", "`https://example.com/new`, `https://example.com$request_uri`; up to 2,048 bytes",
	`https?://[A-Za-z0-9.:_\[\]-]+([/?#][^\x00- "$<>\\^{|}\x7f]*)?([$]request_uri)?`, 2048)

// redirect sets the target of a redirect.
func (f *Filters) redirect(to string) error {
	u, err := url.Parse(strings.TrimSuffix(to, requestURI))
	if err == nil && u.Hostname() == "" {
		err = errors.New("it names no host")
	}
	f.Redirect = to
	if err != nil {
		f.Redirect = ""
	}
	return err
}

// RedirectTo returns where a request for uri, its path and query, is redirected.
func (f *Filters) RedirectTo(uri string) string {
	if base, ok := strings.CutSuffix(f.Redirect, requestURI); ok {
		return strings.TrimSuffix(base, "/") + uri
	}
	return f.Redirect
}

var sizeForm = form[int64]{
	want:  "a size like 8m, or off",
	rule:  `x == 'off' || x.matches('^[0-9]{1,9}[bBkKmMgG]?$')`,
	page:  "`8m`, `512k`, `1g`, `off`",
	parse: func(text string) (int64, error) { return okOr(ParseSize(text)) },
}

var sizes = regexp.MustCompile(`^([0-9]{1,9})([bkmg]?)$`)

// ParseSize reads a size of a body as nginx does: bytes, or k, m and g in either case. 0 and
// off are NoBodySize.
func ParseSize(text string) (int64, bool) {
	if text == off {
		return NoBodySize, true
	}
	m := sizes.FindStringSubmatch(strings.ToLower(text))
	if m == nil {
		return 0, false
	}
	n, _ := strconv.ParseInt(m[1], 10, 64) // nine digits always are a number
	n <<= map[string]int{"k": 10, "m": 20, "g": 30}[m[2]]
	if n == 0 {
		return NoBodySize, true
	}
	return n, true
}

// matchForm is a text that is all of a regular expression, with at most so many bytes.
func matchForm(want, page, pattern string, most int) form[string] {
	whole := regexp.MustCompile(`^(?:` + pattern + `)$`)
	return form[string]{
		want: want, page: page,
		rule:  fmt.Sprintf(`x.matches(r'%s') && x.size() <= %d`, whole, most),
		parse: func(text string) (string, error) { return okOr(text, len(text) <= most && whole.MatchString(text)) },
	}
}

// ParseFilters returns the filters that the annotations of an Ingress ask for beyond the
// defaults, or else those. Where nginx is true, annotations of ingress-nginx count unless
// shield has one for the same that is set. A value that is wrong is left out alone; the
// error names all of them.
func ParseFilters(annotations map[string]string, nginx bool, defaults *Filters) (*Filters, error) {
	return readFilters(&reader{prefix: Prefix, values: annotations}, nginx, defaults)
}

// ParseDefaultFilters is ParseFilters for the parameters of an IngressClass, whose keys have
// no prefix.
func ParseDefaultFilters(data map[string]string) (*Filters, error) {
	return readFilters(&reader{values: data}, false, nil)
}

func readFilters(r *reader, nginx bool, f *Filters) (*Filters, error) {
	if !hasFilters(r, nginx) {
		return f, nil // most objects, at a tenth of the cost
	}
	theirs := &reader{prefix: NginxPrefix, values: r.values}
	defaults := f
	for _, row := range filterRows {
		from, name := r, row.Name
		text, ok := r.get(name)
		if !ok && nginx && row.nginx != "" {
			from, name = theirs, row.nginx
			text, ok = theirs.nginxText(row)
		}
		switch {
		case !ok:
			continue
		case f == nil:
			f = new(Filters)
		case f == defaults:
			own := *defaults
			f = &own
		}
		row.set(from, name, text, f)
	}
	r.errs = append(r.errs, theirs.errs...)
	return f, r.err()
}

// filterNames are the names of filterRows with both prefixes, and without one.
var filterNames = func() map[string]bool {
	all := make(map[string]bool)
	for _, row := range filterRows {
		all[row.Name], all[Prefix+row.Name] = true, true
		all[NginxPrefix+row.nginx], all[NginxPrefix+nginxAliases[row.nginx]] = true, true
	}
	return all
}()

// hasFilters reports whether one of the names may set a filter.
func hasFilters(r *reader, nginx bool) bool {
	for name := range r.values {
		if filterNames[name] && (nginx || strings.HasPrefix(name, r.prefix)) {
			return true
		}
	}
	return false
}

// nginxText returns a value of ingress-nginx's as the same of shield's is written. An empty
// one is none.
func (r *reader) nginxText(row filterRow) (text string, ok bool) {
	v, _ := r.get(row.nginx)
	if v == "" {
		v, _ = r.get(nginxAliases[row.nginx])
	}
	v = strings.TrimSpace(v)
	if on, err := strconv.ParseBool(v); err == nil && row.Want == redirectForm.want {
		v = strconv.FormatBool(on)
	}
	if row.Want == timeoutForm.want {
		v = inSeconds(v)
	}
	return v, v != ""
}

// OnFilters returns the annotations that set filters, in the order of the page's table.
func OnFilters() (list []Annotation) {
	for _, row := range filterRows {
		list = append(list, row.Annotation)
	}
	return list
}
