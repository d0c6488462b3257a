package convert

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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
	unescape(all)
	if err := n.read(all); err != nil {
		return Result{}, err
	}
	n.readDefaults()
	if !n.limits() {
		return Result{}, fmt.Errorf("%s has no limit_req and no limit_conn in a server; want at least one", file)
	}
	var out strings.Builder
	n.writeOptions(&out, all)
	for _, s := range n.servers {
		n.writeServer(&out, s)
	}
	n.mention(all, false)
	return n.notes.result(filepath.Base(file)+", converted by shield convert nginx. Limits, plain backends and "+
		"return are converted: files, rewrites, TLS and all else are yours to write.", out.String()), nil
}

// unescape reads the escapes in arguments, as ngx_conf_read_token does; the parser leaves them.
func unescape(block crossplane.Directives) {
	escapes := strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\'`, `'`, `\t`, "\t", `\r`, "\r", `\n`, "\n")
	for _, d := range block {
		if d.IsMapBlockParameter {
			d.Directive = escapes.Replace(d.Directive)
		}
		for i := range d.Args {
			d.Args[i] = escapes.Replace(d.Args[i])
		}
		unescape(d.Block)
	}
}

type nginx struct {
	file      string
	zones     map[string]*requestZone // and those of limit_conn, by name
	servers   []*nginxServer
	upstreams map[string][]string
	sites     map[string]*nginxServer        // by address
	defaults  map[listen]*nginxServer        // what answers for hosts that no server names
	part      bool                           // the file is a part of a configuration
	outer     crossplane.Directives          // the directives around servers
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
	cases []locationCase
	names []string // of the cases
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
	n.part = true
	for _, d := range all {
		if d.Directive == "http" {
			blocks = append(slices.Clone(blocks), d.Block...)
			outer = outer.in(d.Block)
			n.part = false
		}
	}
	n.outer = blocks
	outer = outer.in(all) // of a part of a configuration
	for _, d := range blocks {
		var err error
		switch d.Directive {
		case "limit_req_zone", "limit_conn_zone":
			err = n.readZone(d)
		case "map", "geo":
			n.readIncludes(d)
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

// readIncludes puts the lines of included files into a map or geo.
func (n *nginx) readIncludes(d *crossplane.Directive) {
	for i := 0; i < len(d.Block); i++ {
		in := d.Block[i]
		if in.Directive != "include" || len(in.Args) != 1 {
			continue
		}
		pattern := in.Args[0]
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(n.file), pattern)
		}
		files, _ := filepath.Glob(pattern)
		var lines crossplane.Directives
		for _, file := range files {
			payload, err := crossplane.Parse(file, &crossplane.ParseOptions{SingleFile: true, SkipDirectiveContextCheck: true, SkipDirectiveArgsCheck: true})
			if err != nil || len(payload.Errors) > 0 || len(payload.Config) != 1 {
				return // the line stays, and is named
			}
			unescape(payload.Config[0].Parsed)
			lines = append(lines, payload.Config[0].Parsed...)
		}
		if len(files) > 0 {
			d.Block = slices.Replace(d.Block, i, i+1, lines...)
			i--
		}
		if len(d.Block) > maxLines {
			return
		}
	}
}

// maxLines bounds how many lines of a map or geo are read, should it include itself.
const maxLines = 100_000

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
		if slices.Contains([]string{"least_conn", "ip_hash", "hash", "random", "least_time", "sticky"}, s.Directive) {
			n.add(Missing, n.at(s), "%s: `lb_policy` in reverse_proxy says how a backend is chosen", s.Directive)
		}
		if s.Directive != "server" || len(s.Args) == 0 {
			continue
		}
		for _, arg := range s.Args[1:] {
			switch name, _, _ := strings.Cut(arg, "="); name {
			case "max_conns":
				n.add(Missing, n.at(s), "%s: it bounds the requests at one backend; `concurrency` bounds those at all of them", arg)
			case "weight":
				n.add(Missing, n.at(s), "%s: `lb_policy weighted_round_robin` in reverse_proxy has weights", arg)
			case "backup":
				n.add(Missing, n.at(s), "backup: the backend is left out; `lb_policy first` in reverse_proxy takes a later one if those before it are down")
			}
		}
		if !slices.Contains(s.Args, "backup") && !slices.Contains(s.Args, "down") {
			n.upstreams[d.Args[0]] = append(n.upstreams[d.Args[0]], s.Args[0])
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

func (n *nginx) readServer(d *crossplane.Directive, outer scope) *nginxServer {
	s := &nginxServer{Directive: d}
	root := &location{Directive: d, scope: outer.in(d.Block)}
	n.readLocations(root, d.Block)
	s.cases = root.order()
	for _, c := range s.cases {
		n.dropUncounted(c.location)
	}
	s.names = make([]string, len(s.cases))
	var taken names
	for _, slashless := range []bool{false, true} {
		for i, c := range s.cases {
			if c.slashless == slashless {
				s.names[i] = taken.of(c.name(), strconv.Itoa(i))
			}
		}
	}
	n.collect(d.Block)
	return s
}

// dropUncounted takes the limits from a location, or from all of a server, that nginx
// answers with return: that is before limits count.
func (n *nginx) dropUncounted(l *location) {
	limits := slices.Concat(l.scope.requests, l.scope.connections)
	for _, block := range []crossplane.Directives{l.Block, l.server().Block} {
		i := slices.IndexFunc(block, func(d *crossplane.Directive) bool { return d.Directive == "return" })
		if i < 0 || len(limits) == 0 {
			continue
		}
		l.scope.requests, l.scope.connections = nil, nil
		n.add(Same, n.at(block[i]), "return answers before limits count, so none does")
		for _, d := range limits {
			n.used[d] = true
		}
	}
}

// collect finds the variables that are set in a server.
func (n *nginx) collect(block crossplane.Directives) {
	for _, d := range block {
		switch d.Directive {
		case "set", "auth_request_set", "js_set", "perl_set":
			n.set[strings.TrimPrefix(d.Args[0], "$")] = n.at(d)
		}
		n.collect(d.Block)
	}
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
	return slices.ContainsFunc(s.cases, func(c locationCase) bool { return len(c.scope.requests)+len(c.scope.connections) > 0 })
}
