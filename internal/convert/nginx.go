package convert

import (
	"errors"
	"fmt"
	"maps"
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
		if s.limits() {
			n.writeServer(&out, s)
		} else {
			n.add(Differs, n.at(s.Directive), "the server has no limits, so no site is written for it: write one, or a site of all hosts takes its requests")
		}
	}
	n.mention(all)
	return n.notes.result(filepath.Base(file)+", converted by shield convert nginx. Limits are converted: what "+
		"answers requests, TLS and all else are yours to write.", out.String()), nil
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
	file     string
	zones    map[string]*requestZone // and those of limit_conn, by name
	servers  []*nginxServer
	sites    map[string]*nginxServer        // by address
	defaults map[listen]*nginxServer        // what answers for hosts that no server names
	part     bool                           // the file is a part of a configuration
	used     map[*crossplane.Directive]bool // directives that were converted or noted
	variables
	names names
	notes
}

// A requestZone is a limit_req_zone or a limit_conn_zone.
type requestZone struct {
	*crossplane.Directive
	key, rate string                // rate as "10/s"; "" for limit_conn
	size      int64                 // in bytes
	servers   map[*nginxServer]bool // that use it
}

// A scope is the limits that hold in a block, its own or inherited, and what else is said of them, by
// the names of their directives.
type scope map[string][]*crossplane.Directive

// last returns the directive of a name; nil: there is none.
func (s scope) last(name string) *crossplane.Directive {
	if all := s[name]; len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

func (s scope) limits() []*crossplane.Directive {
	return slices.Concat(s["limit_req"], s["limit_conn"])
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

func (n *nginx) read(all crossplane.Directives) error {
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
	outer = outer.in(all) // of a part of a configuration
	for _, d := range blocks {
		var err error
		switch d.Directive {
		case "limit_req_zone", "limit_conn_zone":
			err = n.readZone(d)
		case "map", "geo":
			n.readIncludes(d)
			n.blocks[strings.TrimPrefix(d.Args[len(d.Args)-1], "$")] = d
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
	z := &requestZone{Directive: d, servers: map[*nginxServer]bool{}}
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

var ofScope = regexp.MustCompile(`^limit_(req|conn)(_status|_dry_run)?$`)

// in returns what holds in a block: nginx takes limits from outside only where the block
// has none of that kind.
func (s scope) in(block crossplane.Directives) scope {
	own := scope{}
	for _, d := range block {
		if ofScope.MatchString(d.Directive) {
			own[d.Directive] = append(own[d.Directive], d)
		}
	}
	all := maps.Clone(s)
	maps.Copy(all, own)
	return all
}

func (n *nginx) readServer(d *crossplane.Directive, outer scope) *nginxServer {
	s := &nginxServer{Directive: d}
	root := &location{Directive: d, scope: outer.in(d.Block)}
	n.readLocations(root, d.Block)
	s.cases = root.order()
	for _, c := range s.cases {
		n.dropUncounted(c.location)
	}
	var taken names
	for i, c := range s.cases {
		s.names = append(s.names, taken.of(c.name(), strconv.Itoa(i)))
		for _, d := range c.scope.limits() {
			if u, err := n.readUse(d); err == nil {
				u.zone.servers[s] = true
			}
		}
	}
	n.collect(d.Block)
	return s
}

// dropUncounted takes the limits from a location, or from all of a server, that nginx
// answers with return: that is before limits count.
func (n *nginx) dropUncounted(l *location) {
	limits := l.scope.limits()
	blocks := []crossplane.Directives{l.Block}
	if l.parent != nil {
		blocks = append(blocks, l.parent.Block)
	}
	for _, block := range blocks {
		if slices.ContainsFunc(block, func(d *crossplane.Directive) bool { return d.Directive == "return" }) {
			l.scope = scope{}
			for _, d := range limits {
				n.used[d] = true
			}
		}
	}
}

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

func (n *nginx) limits() bool {
	return slices.ContainsFunc(n.servers, func(s *nginxServer) bool { return s.limits() })
}

func (s *nginxServer) limits() bool {
	return slices.ContainsFunc(s.cases, func(c locationCase) bool { return len(c.scope.limits()) > 0 })
}
