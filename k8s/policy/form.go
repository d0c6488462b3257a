package policy

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

// A form is how a value is written. Bounds and words are stated once, in its
// constructor, for the parser, its errors, the API server and the page.
type form[V any] struct {
	want  string // as Annotation.Want
	rule  string // as Annotation.Rule
	page  string // as Annotation.Range
	parse func(text string) (V, error)
}

// errForm is the error of a parser that has nothing to add to want.
var errForm = errors.New("the value has another form")

// okOr returns a parsed value, or errForm.
func okOr[V any](v V, ok bool) (V, error) {
	if !ok {
		return v, errForm
	}
	return v, nil
}

// numberForm is a whole number from 1 to most; or a word, unless that is "", for which
// the parser returns 0.
func numberForm(most int, word string) form[int] {
	f := form[int]{
		want: fmt.Sprintf("a whole number from 1 to %d", most),
		rule: fmt.Sprintf("x.matches('^[1-9][0-9]{0,%d}$') && int(x) <= %d", len(strconv.Itoa(most))-1, most),
		page: fmt.Sprintf("1 to %d", most),
		parse: func(text string) (int, error) {
			if text == word && word != "" {
				return 0, nil
			}
			n, err := strconv.Atoi(text)
			return okOr(n, err == nil && n >= 1 && n <= most)
		},
	}
	return f.orWord(word)
}

// rateForm is a number per unit of time; or a word, unless that is "", for which the
// parser returns the zero Config. The Config has no burst.
func rateForm(word string) form[limiter.Config] {
	f := form[limiter.Config]{
		want: "a number per s, m or h, like 50/s",
		rule: "x.matches('^[0-9]+([.][0-9]+)?/[smh]$') && !x.matches('^[0.]+/')",
		page: "`50/s`, `100/m`, `3/h`",
		parse: func(text string) (c limiter.Config, err error) {
			if text == word && word != "" {
				return c, nil
			}
			return okOr(parseRate(text))
		},
	}
	return f.orWord(word)
}

// orWord has the form take a word, too, unless that is "".
func (f form[V]) orWord(word string) form[V] {
	if word != "" {
		f.want += ", or " + word
		f.rule = "x == '" + word + "' || " + f.rule
		f.page += ", `" + word + "`"
	}
	return f
}

// parseRate parses "<n>/<s|m|h>", as the Caddyfile does.
func parseRate(text string) (c limiter.Config, ok bool) {
	number, unit, _ := strings.Cut(text, "/")
	switch unit {
	case "s":
		c.Per = time.Second
	case "m":
		c.Per = time.Minute
	case "h":
		c.Per = time.Hour
	}
	n, err := strconv.ParseFloat(number, 64)
	c.Rate = n
	return c, err == nil && c.Per > 0 && !math.IsNaN(n) && !math.IsInf(n, 0)
}

// wordForm is one of several words.
func wordForm(words ...string) form[string] {
	last := len(words) - 1
	return form[string]{
		want:  strings.Join(words[:last], ", ") + " or " + words[last],
		rule:  "x in ['" + strings.Join(words, "', '") + "']",
		page:  "`" + strings.Join(words, "`, `") + "`",
		parse: func(text string) (string, error) { return okOr(text, slices.Contains(words, text)) },
	}
}

// The words that more than one place names.
const (
	observe  = "observe"
	adaptive = "adaptive"
)

var (
	burstForm    = numberForm(math.MaxInt32, "")
	modeForm     = wordForm("enforce", observe)
	redirectForm = wordForm("true", "false")
	tlsForm      = wordForm("true", "false", "force")

	// protocolForm takes lower case, too.
	protocolForm = func() form[string] {
		f := wordForm("HTTP", "HTTPS", "H2C", "GRPC")
		f.rule = strings.Replace(f.rule, "x in", "x.upperAscii() in", 1)
		upper := f.parse
		f.parse = func(text string) (string, error) { return upper(strings.ToUpper(text)) }
		return f
	}()

	retryAfterMaxForm = form[time.Duration]{
		want: fmt.Sprintf("whole seconds from %v to %v", minRetryAfterMax, maxRetryAfterMax),
		rule: "x.matches('^([1-9]|[1-5][0-9])s$')",
		page: fmt.Sprintf("whole seconds, `%v` to `%v`", minRetryAfterMax, maxRetryAfterMax),
		parse: func(text string) (time.Duration, error) {
			d, err := time.ParseDuration(text)
			return okOr(d, err == nil && d >= minRetryAfterMax && d <= maxRetryAfterMax && d%time.Second == 0)
		},
	}

	queueTimeoutForm = form[time.Duration]{
		want: fmt.Sprintf("a duration above 0, up to %s, like 50ms", inMinutes(loadshed.MaxQueueTimeout)),
		rule: fmt.Sprintf("x.matches('^([0-9]+([.][0-9]+)?(m|s|ms))+$') && duration(x) > duration('0s') && duration(x) <= duration('%s')", inMinutes(loadshed.MaxQueueTimeout)),
		page: fmt.Sprintf("up to `%s`", inMinutes(loadshed.MaxQueueTimeout)),
		parse: func(text string) (time.Duration, error) {
			d, err := time.ParseDuration(text)
			return okOr(d, err == nil && d > 0 && d <= loadshed.MaxQueueTimeout)
		},
	}

	// The keys that keyForm rejects depend on the list of placeholders: the API server looks at
	// their beginning only.
	keyForm = form[string]{
		want:  "text with placeholders of {http.request.*} and {http.vars.client_ip} only",
		rule:  `x != '' && x.findAll('[{][^}]*[}]?').all(p, p == '{http.vars.client_ip}' || p.matches('^[{]http[.]request[.][^{}]+[}]$'))`,
		page:  fmt.Sprintf("`{http.vars.client_ip}`, `{http.request.header.X-Api-Key}`, `{http.request.cookie.session}`; at most %d bytes", maxKey),
		parse: func(text string) (string, error) { return text, checkKey(text) },
	}

	// namesForm is a list of names of annotations, with or without NginxPrefix.
	namesForm = form[[]string]{
		want:  "names of annotations of ingress-nginx, separated by commas, like auth-url, satisfy",
		rule:  "x.split(',').all(n, n.trim().matches('^(nginx[.]ingress[.]kubernetes[.]io/)?[A-Za-z0-9][-A-Za-z0-9_.]*$'))",
		page:  "names, separated by commas: `auth-url, satisfy`",
		parse: parseNames,
	}

	prefixForm = form[[]netip.Prefix]{
		want:  "addresses and CIDRs, separated by commas, like 10.0.0.0/8, 192.0.2.1",
		rule:  "x.split(',').all(c, isIP(c.trim()) || isCIDR(c.trim()))",
		page:  "addresses and networks, separated by commas: `10.0.0.0/8, 2001:db8::/32, 192.0.2.7`",
		parse: parsePrefixes,
	}
)

// oneName is a name of an annotation, as Kubernetes has them.
var oneName = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9_.]*$`)

func parseNames(text string) (names []string, err error) {
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimPrefix(strings.TrimSpace(name), NginxPrefix)
		if !oneName.MatchString(name) {
			return nil, errForm
		}
		names = append(names, name)
	}
	return names, nil
}

// inMinutes writes whole minutes as "1m", not as "1m0s".
func inMinutes(d time.Duration) string { return strings.TrimSuffix(d.String(), "0s") }
