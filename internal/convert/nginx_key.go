package convert

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"
)

// A value is a text with variables of nginx.
type value struct {
	text     string   // with Caddy's placeholders
	variable []string // the placeholders in it
	sure     bool     // it is never empty
}

// variables are nginx's, as far as requests of one server see them.
type variables struct {
	blocks map[string]*crossplane.Directive // map and geo, by the name of what they set
	set    map[string]string                // where set sets a variable that has no block
	at     func(*crossplane.Directive) string

	// Of one server:
	server  string             // $server_name
	defined map[string][]value // what map and geo may set, of those that its keys need
	lines   strings.Builder    // that set them
}

// of begins with another server.
func (v *variables) of(server string) {
	v.server, v.defined = server, map[string][]value{}
	v.lines.Reset()
}

// nginxVariable finds the variables in a value.
var nginxVariable = regexp.MustCompile(`\$(\w+|\{\w+\})`)

// value reads a text with variables, and sets those of map and geo.
func (v *variables) value(text string, depth int) (all value, err error) {
	if depth > 10 {
		return all, fmt.Errorf("%s depends on itself, or on too many others", text)
	}
	for text != "" {
		at := nginxVariable.FindStringIndex(text)
		if at == nil {
			at = []int{len(text), len(text)}
		}
		all.text += text[:at[0]]
		all.sure = all.sure || at[0] > 0
		if at[0] < at[1] {
			one, err := v.variable(strings.Trim(text[at[0]+1:at[1]], "{}"), depth)
			if err != nil {
				return all, err
			}
			all = value{all.text + one.text, append(all.variable, one.variable...), all.sure || one.sure}
		}
		text = text[at[1]:]
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

func (v *variables) variable(name string, depth int) (value, error) {
	if block := v.blocks[name]; block != nil {
		p := "{vars." + name + "}"
		if err := v.define(name, block, depth+1); err != nil {
			return value{}, fmt.Errorf("$%s (%s): %w", name, v.at(block), err)
		}
		return value{text: p, variable: []string{p}}, nil
	}
	if at := v.set[name]; at != "" {
		return value{}, fmt.Errorf("$%s is set while a request is handled (%s); want a map or geo", name, at)
	}
	if name == "server_name" {
		return value{text: v.server, sure: v.server != ""}, nil
	}
	if p := placeholders[name]; p != "" {
		return value{p, []string{p}, true}, nil
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
		return value{}, fmt.Errorf("$%s has no counterpart", name)
	}
	return value{text: p, variable: []string{p}}, nil
}

// key returns the key of a zone, and when a request has one: nginx does not limit requests whose
// key is empty.
func (v *variables) key(name, text string) (key value, when cond, err error) {
	key, err = v.value(text, 0)
	if err != nil || key.sure || len(key.variable) == 0 {
		return key, cond{}, err
	}
	nonempty := key.variable[0]
	if key.text != nonempty {
		nonempty = "{vars.key-of-" + clean(name) + "}"
		fmt.Fprintf(&v.lines, "vars key-of-%s %s\n", clean(name), quote(key.text))
	}
	when = cond{is: []matcher{{name: "vars_regexp", args: []string{nonempty, "."}}}}
	if set, ok := v.defined[strings.TrimSuffix(strings.TrimPrefix(key.text, "{vars."), "}")]; ok && len(set) < 2 {
		key = value{sure: true} // all that it may be is empty, or one text
		for _, only := range set {
			key = only
		}
	}
	return key, when, nil
}
