package convert

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"
)

// Nginx writes the limits of an nginx configuration as a Caddyfile: limit_req and limit_conn
// with what map and geo say of their keys. It reads the file and those that it includes. A
// file may also be a part of a configuration, as those in sites-enabled are.
func Nginx(file string) (Result, error) {
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		return Result{}, fmt.Errorf("%s is a folder; want the file in it that includes the others, like nginx.conf", file)
	}
	// Parts of a configuration have no contexts to check.
	payload, err := crossplane.Parse(file, &crossplane.ParseOptions{CombineConfigs: true, SkipDirectiveContextCheck: true})
	if err != nil {
		return Result{}, err
	}
	n := &nginx{file: file, zones: map[string]*requestZone{}, sites: map[string]*nginxServer{}, used: map[*crossplane.Directive]bool{}}
	n.variables = variables{blocks: map[string]*crossplane.Directive{}, set: map[string]string{}, at: n.at}
	for _, e := range payload.Errors {
		var wrong *crossplane.ParseError
		if !errors.As(e.Error, &wrong) || !strings.HasPrefix(wrong.What, "open ") {
			return Result{}, fmt.Errorf("%s: %w", e.File, e.Error)
		}
		n.add(Missing, fmt.Sprintf("%s:%d", filepath.Base(e.File), *wrong.Line), "the included file cannot be read, and may have limits: %s", wrong.What)
	}
	var all crossplane.Directives
	for _, c := range payload.Config {
		all = append(all, c.Parsed...)
	}
	if err := n.read(all); err != nil {
		return Result{}, err
	}
	if !n.limits() {
		return Result{}, fmt.Errorf("%s has no limit_req and no limit_conn in a server; want at least one", file)
	}
	var out strings.Builder
	n.writeOptions(&out, all)
	for _, s := range n.servers {
		n.writeServer(&out, s)
	}
	n.mention(all, false)
	return n.notes.result(filepath.Base(file)+", converted by shield convert nginx. Only the limits are converted: "+
		"routes, files, TLS and all else are yours to write.", out.String()), nil
}

type nginx struct {
	file      string
	zones     map[string]*requestZone // and those of limit_conn, by name
	servers   []*nginxServer
	upstreams map[string][]string
	sites     map[string]*nginxServer        // by address
	used      map[*crossplane.Directive]bool // directives that were converted or noted
	variables
	names names
	notes
}

// A requestZone is a limit_req_zone or a limit_conn_zone.
type requestZone struct {
	*crossplane.Directive
	key, rate string // rate as "10/s"; "" for limit_conn
	size      int64  // in bytes
}

// A scope is what holds in a block, its own or inherited.
type scope struct {
	requests, connections       []*crossplane.Directive // limit_req and limit_conn
	status, connStatus          *crossplane.Directive
	dryRequests, dryConnections *crossplane.Directive
}

// An nginxServer has a case for each location, and a last one for what fits none.
type nginxServer struct {
	*crossplane.Directive
	scopes  []scope
	cases   choice
	proxies []*crossplane.Directive
}

func (n *nginx) at(d *crossplane.Directive) string {
	file := d.File
	if file == "" {
		file = n.file
	}
	return fmt.Sprintf("%s:%d", filepath.Base(file), d.Line)
}

// read finds the zones, variables and servers.
func (n *nginx) read(all crossplane.Directives) error {
	n.upstreams = map[string][]string{}
	outer := scope{}
	blocks := all
	for _, d := range all {
		if d.Directive == "http" {
			blocks = append(slices.Clone(blocks), d.Block...)
			outer = outer.in(d.Block)
		}
	}
	outer = outer.in(all) // of a part of a configuration
	for _, d := range blocks {
		var err error
		switch d.Directive {
		case "limit_req_zone", "limit_conn_zone":
			err = n.readZone(d)
		case "map", "geo":
			n.blocks[strings.TrimPrefix(d.Args[len(d.Args)-1], "$")] = d
		case "upstream":
			n.readUpstream(d)
		}
		if err != nil {
			return err
		}
	}
	for _, d := range blocks {
		switch d.Directive {
		case "server":
			n.servers = append(n.servers, n.readServer(d, outer))
		case "location": // a part of a server
			n.servers = append(n.servers, n.readServer(&crossplane.Directive{Directive: "server", Line: d.Line, File: d.File, Block: all}, outer))
			return nil
		}
	}
	return nil
}

var (
	zoneArgument = regexp.MustCompile(`^zone=([^:]+):(\d+)([kKmM]?)$`)
	rateArgument = regexp.MustCompile(`^rate=(\d+)r/([sm])$`)
)

func (n *nginx) readZone(d *crossplane.Directive) error {
	z := &requestZone{Directive: d}
	name := ""
	for i, arg := range d.Args {
		zone, rate := zoneArgument.FindStringSubmatch(arg), rateArgument.FindStringSubmatch(arg)
		switch {
		case i == 0:
			z.key = arg
		case zone != nil:
			name = zone[1]
			fmt.Sscan(zone[2], &z.size)
			z.size <<= map[string]int{"k": 10, "m": 20}[strings.ToLower(zone[3])]
		case rate != nil && rate[1] != "0":
			z.rate = rate[1] + "/" + rate[2]
		case arg == "sync":
			n.add(Missing, n.at(d), "sync: replicas share limits through Redis, with `store` in the global options (docs/replicas.md)")
		default:
			return fmt.Errorf("%s: %s of %s is not understood", n.at(d), arg, d.Directive)
		}
	}
	if name == "" || z.rate == "" && d.Directive == "limit_req_zone" {
		return fmt.Errorf("%s: %s lacks its zone or rate; want both", n.at(d), d.Directive)
	}
	n.zones[name] = z
	return nil
}

func (n *nginx) readUpstream(d *crossplane.Directive) {
	for _, s := range d.Block {
		if s.Directive != "server" || len(s.Args) == 0 {
			continue
		}
		n.upstreams[d.Args[0]] = append(n.upstreams[d.Args[0]], s.Args[0])
		for _, arg := range s.Args {
			if strings.HasPrefix(arg, "max_conns=") {
				n.add(Missing, n.at(s), "%s: it bounds the requests at one backend; `concurrency` bounds those at all of them", arg)
			}
		}
	}
}

// in returns what holds in a block: nginx takes limits from outside only where the block
// has none of that kind.
func (s scope) in(block crossplane.Directives) scope {
	var requests, connections []*crossplane.Directive
	for _, d := range block {
		switch d.Directive {
		case "limit_req":
			requests = append(requests, d)
		case "limit_conn":
			connections = append(connections, d)
		case "limit_req_status":
			s.status = d
		case "limit_conn_status":
			s.connStatus = d
		case "limit_req_dry_run":
			s.dryRequests = d
		case "limit_conn_dry_run":
			s.dryConnections = d
		}
	}
	if requests != nil {
		s.requests = requests
	}
	if connections != nil {
		s.connections = connections
	}
	return s
}

// readServer puts the locations into the order in which nginx chooses one.
func (n *nginx) readServer(d *crossplane.Directive, outer scope) *nginxServer {
	s := &nginxServer{Directive: d}
	base := outer.in(d.Block)
	var all []nginxLocation
	n.readLocations(d.Block, base, cond{}, 0, &all)
	slices.SortStableFunc(all, func(a, b nginxLocation) int { return a.before(b) })
	for _, l := range all {
		c := l.when
		if l.modifier == "^~" { // a longer prefix without it lets regular expressions in
			for _, o := range all {
				if o.modifier == "" && len(o.path) > len(l.path) && strings.HasPrefix(o.path, l.path) {
					c = and(c, cond{not: []cond{o.when}})
				}
			}
		}
		if l.path == "/" && l.modifier == "" {
			c = cond{} // it is the last, and nothing is left for the server itself
		}
		s.cases, s.scopes = append(s.cases, c), append(s.scopes, l.scope)
	}
	if len(s.cases) == 0 || !s.cases[len(s.cases)-1].all() {
		s.cases, s.scopes = append(s.cases, cond{}), append(s.scopes, base)
	}
	n.collect(d.Block, s)
	return s
}

// collect finds the backends of a server, and the variables that are set in it.
func (n *nginx) collect(block crossplane.Directives, s *nginxServer) {
	for _, d := range block {
		switch d.Directive {
		case "proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "grpc_pass":
			s.proxies = append(s.proxies, d)
		case "set", "auth_request_set", "js_set", "perl_set":
			n.set[strings.TrimPrefix(d.Args[0], "$")] = n.at(d)
		}
		n.collect(d.Block, s)
	}
}

type nginxLocation struct {
	modifier, path string
	depth          int
	when           cond
	scope          scope
}

// before orders locations: exact ones, prefixes that exclude regular expressions, those, and
// all other prefixes. Longer prefixes are first; of regular expressions those in other
// locations, and then the first.
func (l nginxLocation) before(o nginxLocation) int {
	rank := map[string]int{"=": 0, "^~": 1, "~": 2, "~*": 2, "": 3}
	if a, b := rank[l.modifier], rank[o.modifier]; a != b {
		return a - b
	}
	if rank[l.modifier] == 2 {
		return o.depth - l.depth
	}
	return len(o.path) - len(l.path)
}

func (n *nginx) readLocations(block crossplane.Directives, outer scope, parent cond, depth int, all *[]nginxLocation) {
	for _, d := range block {
		if d.Directive != "location" || len(d.Args) == 0 {
			continue
		}
		l := nginxLocation{path: d.Args[len(d.Args)-1], depth: depth, scope: outer.in(d.Block)}
		if len(d.Args) == 2 {
			l.modifier = d.Args[0]
		}
		if strings.HasPrefix(l.path, "@") {
			if len(l.scope.requests)+len(l.scope.connections) > 0 {
				n.add(Missing, n.at(d), "location %s: other locations send requests there inside nginx, so its limits have no path", l.path)
			}
			n.markUsed(d.Block)
			continue
		}
		m, err := l.matcher()
		if err != nil {
			n.add(Missing, n.at(d), "location %s: %v. Its requests are taken for those of no location", l.path, err)
			n.markUsed(d.Block)
			continue
		}
		l.when = cond{is: []matcher{m}}
		if depth > 0 && (l.modifier == "~" || l.modifier == "~*") {
			l.when = and(parent, l.when)
		}
		*all = append(*all, l)
		n.readLocations(d.Block, l.scope, l.when, depth+1, all)
	}
}

// matcher returns Caddy's matcher of a location.
func (l nginxLocation) matcher() (matcher, error) {
	switch l.modifier {
	case "~", "~*":
		expression := l.path
		if l.modifier == "~*" {
			expression = "(?i)" + expression
		}
		if _, err := regexp.Compile(expression); err != nil {
			return matcher{}, fmt.Errorf("it is no regular expression in Go: %w", err)
		}
		return matcher{name: "path_regexp", args: []string{expression}}, nil
	}
	m := matcher{name: "path", args: []string{l.path + "*"}, path: l.path, exact: l.modifier == "="}
	if m.exact {
		m.args[0] = l.path
	}
	if strings.ContainsAny(l.path, "*{}%") || !strings.HasPrefix(l.path, "/") {
		return matcher{}, errors.New("the path matcher of Caddy cannot say it")
	}
	return m, nil
}

func (n *nginx) markUsed(block crossplane.Directives) {
	for _, d := range block {
		n.used[d] = true
		n.markUsed(d.Block)
	}
}

// limits reports whether a server limits requests.
func (n *nginx) limits() bool {
	return slices.ContainsFunc(n.servers, func(s *nginxServer) bool { return s.limits() })
}

func (s *nginxServer) limits() bool {
	return slices.ContainsFunc(s.scopes, func(o scope) bool { return len(o.requests)+len(o.connections) > 0 })
}
