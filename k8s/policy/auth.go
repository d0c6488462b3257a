package policy

import (
	"net/url"
	"slices"
	"strings"
)

// Auth has another service decide whether a request is let in.
type Auth struct {
	// URL is asked about each request that the limits admit. "$host", "$http_host", which
	// is the same here, "$scheme", "$request_uri" and "$escaped_request_uri" in it, and in
	// Signin, stand for what the client has sent. "" denies all requests: an annotation is wrong.
	URL string

	// Signin is where browsers that are not signed in are sent; "": they get 401.
	Signin string

	// Headers are the names, canonical, of fields of the response that the backend gets. Fields
	// of clients with those names are not passed on.
	Headers []string
}

// authForm is a URL with variables. The host of auth-url must not be the client's choice, see
// Auth.OfClientsChoice.
var authForm = matchForm("a URL of http or https, with $host, $http_host, $scheme, $request_uri or $escaped_request_uri as variables", "`http://auth.auth.svc.cluster.local/verify`, `https://$host/oauth2/auth`; up to 2,048 bytes",
	`(https?|[$]scheme)://([A-Za-z0-9._-]+|[$](http_)?host|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?([/?]([^\x00- "$<>\\^{|}\x7f]|[$](host|http_host|scheme|request_uri|escaped_request_uri))*)?`, 2048)

// signinForm is an authForm with an example that browsers can reach.
var signinForm = func() form[string] {
	f := authForm
	f.page = "`https://$host/oauth2/start`, `https://login.example.com/`; up to 2,048 bytes"
	return f
}()

// authOf makes a row that sets something of an Auth. A bad value denies all requests.
func authOf[V any](name, meaning, byDefault string, of form[V], set func(a *Auth, v V)) filterRow {
	row := filterOf(Annotation{Name: name, Meaning: meaning, Default: byDefault}, name, of, func(f *Filters, v V) error {
		if f.Auth == nil {
			if name != "auth-url" {
				return nil // ingress-nginx ignores it, too
			}
			f.Auth = new(Auth)
		}
		a := *f.Auth
		set(&a, v)
		f.Auth = &a
		return nil
	})
	good := row.set
	row.set = func(r *reader, name, text string, f *Filters) {
		n := len(r.errs)
		if good(r, name, text, f); len(r.errs) > n {
			f.Auth = new(Auth)
		}
	}
	return row
}

// clientsHost stands for the host that a client asks for.
const clientsHost = "host.invalid"

// OfClientsChoice reports whether the URL names the host that a client asks for. Then rules
// must name theirs, or a client would choose who lets it in.
func (a *Auth) OfClientsChoice() bool { return a.host() == clientsHost }

// host returns the host of the URL, in lower case.
func (a *Auth) host() string {
	u, err := url.Parse(a.Ask("http", clientsHost, "/"))
	if err != nil {
		return ""
	}
	return strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
}

// Outside returns the first host that may be asked and is none of the allowed ones, which may
// begin with "*." for any label; "": all are allowed. rules are the hosts of the rules.
func (a *Auth) Outside(allowed, rules []string) string {
	asked := []string{a.host()}
	if a.OfClientsChoice() {
		asked = rules
	}
	for _, host := range asked {
		_, domain, _ := strings.Cut(host, ".")
		if !slices.Contains(allowed, host) && !slices.Contains(allowed, "*."+domain) {
			return host
		}
	}
	return ""
}

// Ask returns the URL for a request.
func (a *Auth) Ask(scheme, host, uri string) string { return fill(a.URL, scheme, host, uri) }

// SigninFor returns where a browser is sent to sign in, with the URL of the request as the
// parameter rd, unless Signin has that already: oauth2-proxy sends it back there.
func (a *Auth) SigninFor(scheme, host, uri string) string {
	to := a.Signin
	if !strings.Contains(to, "?rd=") && !strings.Contains(to, "&rd=") {
		mark := "?"
		if strings.Contains(to, "?") {
			mark = "&"
		}
		return fill(to, scheme, host, uri) + mark + "rd=" + url.QueryEscape(scheme+"://"+host+uri)
	}
	return fill(to, scheme, host, uri)
}

func fill(text, scheme, host, uri string) string {
	return strings.NewReplacer("$host", host, "$http_host", host, "$scheme", scheme, "$request_uri", uri, "$escaped_request_uri", url.QueryEscape(uri)).Replace(text)
}
