package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"github.com/herdshield/shield/loadtest/lab/process"
)

// A front is what stands in front: a program and its config.
type front struct {
	name    string
	program string // nginx, haproxy, shield or baseline
	config  string // a template of a setting; "": args say it all
	args    []string
	door    bool // for caddyConf
	static  bool // for caddyConf
}

var (
	nginx   = front{name: "nginx", program: "nginx", config: nginxConf, args: []string{"-e", "stderr", "-p", "{{.Folder}}", "-c", "{{.Folder}}/config"}}
	haproxy = front{name: "HAProxy", program: "haproxy", config: haproxyConf, args: []string{"-db", "-f", "{{.Folder}}/config"}} // -db: in the foreground
	static  = front{name: "Caddy, static 429", program: "shield", config: caddyConf, args: caddyRun, static: true}
	today   = front{name: "shield before fast reject", program: "baseline", config: caddyConf, args: caddyRun}
	without = front{name: "shield, fast_reject off", program: "shield", config: caddyConf, args: caddyRun}
	with    = front{name: "shield", program: "shield", config: caddyConf, args: caddyRun, door: true}

	proxyToday = front{name: "shield proxy before fast reject", program: "baseline", args: proxyRun}
	proxy      = front{name: "shield proxy", program: "shield", args: proxyRun}
)

var (
	caddyRun = []string{"run", "--config", "{{.Folder}}/config", "--adapter", "caddyfile"}
	proxyRun = []string{"proxy", "--from", "{{.Address}}", "--to", "{{.Backend}}", "--rate", "{{.Limit.Count}}/{{.Limit.Per}}", "--admin", "off"}
)

// A setting is what configs and arguments can name.
type setting struct {
	row
	front
	Address, Backend string // host:port
	Keys             string // the folder of cert.pem, key.pem, and both.pem
	Folder           string // for the config and other files
}

func (s setting) Limit() limit { return s.row.limit }
func (s setting) TLS() bool    { return s.row.tls }
func (s setting) Door() bool   { return s.front.door }
func (s setting) Static() bool { return s.front.static }
func (s setting) Body() string { return rejection }

// Directive is what the shield's directive has.
func (s setting) Directive() (string, error) { return s.fill(cmp.Or(s.row.shield, zone)) }

// Port is for caddyConf: a site with an address is for requests to that host only.
func (s setting) Port() string { return s.Address[strings.LastIndexByte(s.Address, ':')+1:] }

// rejection is the body of a response where the config says one. nginx's own page and shield's
// answer are of about its length.
var rejection = strings.Repeat("Too many requests. ", 10)

// nginxConf is Debian's nginx.conf, where it matters. One core has one worker. By default
// nginx ends a connection after 1,000 requests.
const nginxConf = `daemon off;
worker_processes 1;
pid {{.Folder}}/nginx.pid;
error_log stderr crit; # at Debian's level there is a line for each rejection
events {
	worker_connections 4096;
}
http {
	access_log off;
	client_body_temp_path {{.Folder}}/body;
	proxy_temp_path       {{.Folder}}/proxy;
	fastcgi_temp_path     {{.Folder}}/fastcgi;
	uwsgi_temp_path       {{.Folder}}/uwsgi;
	scgi_temp_path        {{.Folder}}/scgi;
	keepalive_requests 1000000000;

	limit_req_zone $binary_remote_addr zone=clients:10m rate={{.Limit.Count}}r/{{if eq .Limit.Per "h"}}m{{else}}s{{end}}; # no rate is per hour
	limit_req_status 429;
	map $status $retry_after { 429 1; }

	upstream backend {
		server {{.Backend}};
		keepalive 64;
		keepalive_requests 1000000000;
	}
	server {
		listen {{.Address}}{{if .TLS}} ssl http2{{end}} backlog=4096;
{{- if .TLS}}
		ssl_certificate     {{.Keys}}/cert.pem;
		ssl_certificate_key {{.Keys}}/key.pem;
		ssl_protocols TLSv1.3; # Debian has older ones, too
{{- end}}
		location / {
			limit_req zone=clients burst={{.Limit.Count}} nodelay;
			add_header Retry-After $retry_after always;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
			proxy_pass http://backend;
		}
	}
}
`

// haproxyConf is Debian's haproxy.cfg, where it matters. Its rate counts rejected requests too.
const haproxyConf = `global
	nbthread 1
	maxconn 4096
	tune.ssl.default-dh-param 2048
defaults
	mode http
	timeout connect 5s
	timeout client 60s
	timeout server 60s
frontend site
	bind {{.Address}}{{if .TLS}} ssl crt {{.Keys}}/both.pem alpn h2,http/1.1{{end}} backlog 4096
	stick-table type ip size 100k expire 2h store http_req_rate(1{{.Limit.Per}})
	http-request track-sc0 src
	http-request return status 429 content-type text/plain string "{{.Body}}" hdr Retry-After 1 if { sc_http_req_rate(0) gt {{.Limit.Count}} }
	default_backend site
backend site
	http-reuse always
	server backend {{.Backend}}
`

// caddyConf is of shield, as the README has it, and of Caddy alone. Without dither, as nginx
// holds no rejection back either.
const caddyConf = `{
	admin off
	persist_config off
	auto_https off
	log {
		level ERROR
	}
	servers {
		protocols h1 h2
{{- if .Door}}
		listener_wrappers {
			shield
		}
{{- end}}
	}
}
{{if .TLS}}https{{else}}http{{end}}://:{{.Port}} {
	bind 127.0.0.1
{{- if .TLS}}
	tls {{.Keys}}/cert.pem {{.Keys}}/key.pem
{{- end}}
{{- if .Static}}
	header Retry-After 1
	respond "{{.Body}}" 429
{{- else}}
	shield {
		{{.Directive}}
		pushback {
			dither off
		}
	}
	reverse_proxy {{.Backend}}
{{- end}}
}
`

// fill fills a template in.
func (s setting) fill(text string) (string, error) {
	t, err := template.New("setting").Parse(text)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, s)
	return b.String(), err
}

// start runs the front's program on its core until stop is called. pid is of its first process.
func (s setting) start(ctx context.Context, path string) (pid int, stop func(), err error) {
	config, err := s.fill(s.config)
	if err != nil {
		return 0, nil, err
	}
	if err := os.WriteFile(filepath.Join(s.Folder, "config"), []byte(config), 0o644); err != nil {
		return 0, nil, err
	}
	args := append(onCore(frontCore), path)
	for _, a := range s.args {
		arg, err := s.fill(a)
		if err != nil {
			return 0, nil, err
		}
		args = append(args, arg)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = s.Folder
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "HOME="+s.Folder, "XDG_CONFIG_HOME="+s.Folder, "XDG_DATA_HOME="+s.Folder)
	if stop, err = process.Start(ctx, cmd, filepath.Join(s.Folder, "log"), "tcp", s.Address); err != nil {
		return 0, nil, fmt.Errorf("%s: %w", s.front.name, err)
	}
	return cmd.Process.Pid, stop, nil
}

// programs are the paths of what fronts run, by their names.
type programs map[string]string

// debian are those that Debian has.
var debian = []string{"nginx", "haproxy"}

// find adds those of Debian's servers that are installed. They are not in every PATH.
func (p programs) find() programs {
	for _, name := range debian {
		for _, path := range []string{"/usr/sbin/" + name, name} {
			if found, err := exec.LookPath(path); err == nil {
				p[name] = found
			}
		}
	}
	return p
}

// versions names what stands in front.
func (p programs) versions(ctx context.Context) (all []string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, name := range debian {
		if p[name] == "" {
			continue
		}
		out, _ := exec.CommandContext(ctx, p[name], "-v").CombinedOutput()
		line, _, _ := strings.Cut(strings.TrimSpace(string(out)), " - ")
		all = append(all, line)
	}
	return all
}
