package policy

import "strconv"

// A Redirect says which requests over plain HTTP are redirected to HTTPS.
type Redirect uint8

// The Redirects.
const (
	RedirectTLS    Redirect = iota // those for hosts in spec.tls
	RedirectNever                  // none
	RedirectAlways                 // all
)

// redirects are the words of ssl-redirect.
var redirects = map[string]Redirect{"true": RedirectTLS, "false": RedirectNever, "force": RedirectAlways}

// SSLRedirect returns what the annotations of an Ingress say, or else class. With nginx, those
// of ingress-nginx count unless shield's is set: force-ssl-redirect: "true" before
// ssl-redirect; what is no boolean is not set. With an error it returns class.
func SSLRedirect(annotations map[string]string, nginx bool, class Redirect) (Redirect, error) {
	if _, own := annotations[Prefix+"ssl-redirect"]; nginx && !own {
		if on, _ := strconv.ParseBool(annotations[NginxPrefix+"force-ssl-redirect"]); on {
			return RedirectAlways, nil
		}
		switch on, err := strconv.ParseBool(annotations[NginxPrefix+"ssl-redirect"]); {
		case err != nil:
			return class, nil
		case on:
			return RedirectTLS, nil
		}
		return RedirectNever, nil
	}
	return sslRedirect(annotations, Prefix, class)
}

// DefaultSSLRedirect returns what the parameters of an IngressClass say.
func DefaultSSLRedirect(data map[string]string) (Redirect, error) {
	return sslRedirect(data, "", RedirectTLS)
}

func sslRedirect(values map[string]string, prefix string, otherwise Redirect) (Redirect, error) {
	r := reader{prefix: prefix, values: values}
	if v, ok := r.get("ssl-redirect"); ok {
		if word, good := parse(&r, "ssl-redirect", tlsForm, v); good {
			return redirects[word], nil
		}
	}
	return otherwise, r.err()
}
