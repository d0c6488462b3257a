package policy

import (
	"cmp"
	"slices"
	"strings"

	"github.com/herdshield/shield/dialect"
)

// CORS says which web pages of other sites may read answers (fetch.spec.whatwg.org, "CORS
// protocol"). Empty fields are ingress-nginx's defaults.
type CORS struct {
	Off     bool
	Origins []string // in lower case, each with at most one "*" for a label; nil or "*": all

	NoCredentials            bool
	Methods, Headers, MaxAge string

	// Expose are the fields that pages may read besides shield's own.
	Expose string
}

// ingress-nginx's defaults (internal/ingress/annotations/cors). The second is shortened in the
// page's table.
const (
	corsMethods = "GET, PUT, POST, DELETE, PATCH, OPTIONS"
	corsHeaders = "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization"
	corsMaxAge  = "1728000"
)

// origin is the pattern of one origin, or of all.
const origin = `([*]|[A-Za-z][A-Za-z0-9+.-]*://([*][.])?[A-Za-z0-9._-]+(:[0-9]{1,5})?)`

// tokensForm is a list of methods or names of fields.
func tokensForm(examples string) form[string] {
	const token = `([*]|[A-Za-z0-9_-]+)`
	return matchForm("names, separated by commas", examples+"; up to 1,024 bytes", token+`( *, *`+token+`)*( *,)? *`, 1024)
}

// corsOf makes a row that sets something of a CORS. A bad value leaves CORS out: the defaults
// would allow more.
func corsOf(name, meaning, byDefault string, of form[string], set func(c *CORS, v string)) filterRow {
	row := filterOf(Annotation{Name: name, Meaning: meaning, Default: byDefault}, name, of, func(f *Filters, v string) error {
		c := CORS{Off: true}
		if f.CORS != nil {
			c = *f.CORS
		}
		set(&c, v)
		f.CORS = &c
		return nil
	})
	good := row.set
	row.set = func(r *reader, name, text string, f *Filters) {
		n := len(r.errs)
		if good(r, name, text, f); len(r.errs) > n {
			f.CORS = &CORS{Off: true}
		}
	}
	return row
}

func fieldsOf(list string) (all []string) {
	for one := range strings.SplitSeq(list, ",") {
		if one = strings.TrimSpace(one); one != "" {
			all = append(all, one)
		}
	}
	return all
}

// Allow returns the Access-Control-Allow-Origin for a request with this Origin field; "": none.
// vary: it depends on the field.
func (c *CORS) Allow(origin string) (allowed string, vary bool) {
	switch {
	case c == nil || c.Off:
		return "", false
	case len(c.Origins) == 0 || slices.Contains(c.Origins, "*"):
		return "*", false
	}
	low := strings.ToLower(origin)
	for _, o := range c.Origins {
		if before, after, wild := strings.Cut(o, "*"); !wild && o == low {
			return origin, true
		} else if rest, ok := strings.CutPrefix(low, before); wild && ok {
			if label, ok := strings.CutSuffix(rest, after); ok && label != "" && !strings.ContainsAny(label, "./:@") {
				return origin, true
			}
		}
	}
	return "", true
}

// Fields calls set with the other fields of answers to origins that are allowed.
func (c *CORS) Fields(set func(name, value string)) {
	if !c.NoCredentials {
		set("Access-Control-Allow-Credentials", "true")
	}
	set("Access-Control-Allow-Methods", cmp.Or(c.Methods, corsMethods))
	set("Access-Control-Allow-Headers", cmp.Or(c.Headers, corsHeaders))
	set("Access-Control-Max-Age", cmp.Or(c.MaxAge, corsMaxAge))
	expose := dialect.Exposed
	if c.Expose != "" {
		expose = c.Expose + ", " + expose
	}
	set("Access-Control-Expose-Headers", expose)
}
