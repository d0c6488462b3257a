package convert

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"
)

// An outcome is one text that a value with variables may have, and when.
type outcome struct {
	when cond
	key  string // with Caddy's placeholders

	variable []string // the placeholders in it
	sure     bool     // it is never empty
}

// maxOutcomes bounds how many texts a value may have. Ours: more zones than that are not
// read by a person.
const maxOutcomes = 64

// variables are nginx's, as far as requests of one server see them.
type variables struct {
	blocks map[string]*crossplane.Directive // map and geo, by the name of what they set
	set    map[string]string                // where set sets a variable that has no block
	server string                           // $server_name
	at     func(*crossplane.Directive) string
}

// nginxVariable finds the variables in a value.
var nginxVariable = regexp.MustCompile(`\$(\w+|\{\w+\})`)

// outcomes returns the texts that a value may have. Their conditions exclude each other.
func (v *variables) outcomes(value string, depth int) ([]outcome, error) {
	if depth > 10 {
		return nil, fmt.Errorf("%s depends on itself, or on too many others", value)
	}
	all := []outcome{{}}
	for value != "" {
		at := nginxVariable.FindStringIndex(value)
		if at == nil {
			at = []int{len(value), len(value)}
		}
		options := []outcome{{key: value[:at[0]], sure: at[0] > 0}}
		all, _ = combine(all, options)
		if at[0] < at[1] {
			options, err := v.variable(strings.Trim(value[at[0]+1:at[1]], "{}"), depth)
			if err != nil {
				return nil, err
			}
			if all, err = combine(all, options); err != nil {
				return nil, fmt.Errorf("%s: %w", value, err)
			}
		}
		value = value[at[1]:]
	}
	return all, nil
}

// combine returns each text of a with each of b after it.
func combine(a, b []outcome) (all []outcome, err error) {
	if len(a)*len(b) > maxOutcomes {
		return nil, fmt.Errorf("it has more than %d values", maxOutcomes)
	}
	for _, x := range a {
		for _, y := range b {
			if disjoint(x.when, y.when) {
				continue
			}
			all = append(all, outcome{and(x.when, y.when), x.key + y.key, slices.Concat(x.variable, y.variable), x.sure || y.sure})
		}
	}
	return all, nil
}

// placeholders are Caddy's for variables that are never empty.
var placeholders = map[string]string{
	"remote_addr": "{client_ip}", "binary_remote_addr": "{client_ip}",
	"host": "{host}", "http_host": "{hostport}",
	"request_uri": "{uri}", "uri": "{path}", "document_uri": "{path}",
	"request_method": "{method}", "scheme": "{scheme}",
	"server_port": "{http.request.local.port}", "server_addr": "{http.request.local.host}",
	"server_protocol": "{http.request.proto}", "hostname": "{system.hostname}",
}

// emptyable are those for variables that may be empty.
var emptyable = map[string]string{
	"args": "{query}", "query_string": "{query}",
	"ssl_client_fingerprint": "{tls_client_fingerprint}", "ssl_client_s_dn": "{tls_client_subject}",
	"ssl_client_serial": "{tls_client_serial}", "ssl_client_i_dn": "{tls_client_issuer}",
	"ssl_server_name": "{http.request.tls.server_name}",
}

// variable returns what a variable may be.
func (v *variables) variable(name string, depth int) ([]outcome, error) {
	if block := v.blocks[name]; block != nil {
		outs, err := v.mapped(block, depth+1)
		if err != nil {
			return nil, fmt.Errorf("$%s (%s): %w", name, v.at(block), err)
		}
		return outs, nil
	}
	if at := v.set[name]; at != "" {
		return nil, fmt.Errorf("$%s is set while a request is handled (%s); want a map or geo", name, at)
	}
	if name == "server_name" {
		return []outcome{{key: v.server, sure: v.server != ""}}, nil
	}
	if p := placeholders[name]; p != "" {
		return []outcome{{key: p, variable: []string{p}, sure: true}}, nil
	}
	p := emptyable[name]
	prefix, rest, _ := strings.Cut(name, "_")
	switch {
	case rest == "":
	case prefix == "http":
		p = "{header." + http.CanonicalHeaderKey(strings.ReplaceAll(rest, "_", "-")) + "}"
	case prefix == "cookie":
		p = "{cookie." + rest + "}"
	case prefix == "arg":
		p = "{query." + rest + "}"
	}
	if p == "" {
		return nil, fmt.Errorf("$%s has no counterpart", name)
	}
	return []outcome{{key: p, variable: []string{p}}}, nil
}

// limited returns the outcomes in which nginx limits a request: those in which the key is
// not empty.
func (v *variables) limited(value string) (all []outcome, err error) {
	outs, err := v.outcomes(value, 0)
	if err != nil {
		return nil, err
	}
	for _, o := range outs {
		if !o.sure {
			var some []matcher
			for _, p := range o.variable {
				some = append(some, matcher{name: "vars_regexp", args: []string{p, "."}})
			}
			switch len(some) {
			case 0:
				continue // it is empty
			case 1:
				o.when = and(o.when, cond{is: some})
			default:
				var each []cond
				for _, m := range some {
					each = append(each, cond{is: []matcher{m}})
				}
				o.when = and(o.when, either(each))
			}
		}
		all = append(all, o)
	}
	return all, nil
}
