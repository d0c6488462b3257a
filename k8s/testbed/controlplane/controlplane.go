// Package controlplane runs a real Kubernetes API server with etcd on loopback, without
// nodes, controllers and network. testbed/build builds both from the public modules.
package controlplane

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	// AdminToken is the bearer token of the user admin, which has all permissions.
	AdminToken = "admin-of-the-testbed"

	startsWithin = time.Minute // 3 s on an idle machine
)

// ErrMissing is the error of Programs if some of them have not been built.
var ErrMissing = errors.New("not built: run k8s/testbed/build")

// Programs returns the folder with etcd and kube-apiserver: $SHIELD_K8S_BIN, by
// default ~/.cache/shield-k8s/bin. The error is ErrMissing if one does not exist.
func Programs() (string, error) {
	folder := os.Getenv("SHIELD_K8S_BIN")
	if folder == "" {
		cache := os.Getenv("XDG_CACHE_HOME")
		if cache == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				return "", err
			}
			cache = filepath.Join(home, ".cache")
		}
		folder = filepath.Join(cache, "shield-k8s", "bin")
	}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			return folder, fmt.Errorf("%w (%w)", ErrMissing, err)
		}
	}
	return folder, nil
}

// A Plane is a running control plane. Its methods are for one goroutine.
type Plane struct {
	URL string // of the API server: https://127.0.0.1:port
	CA  []byte // PEM: the authority of its certificate
	Dir string // its files: logs, the database, the audit log

	bin       string
	etcdURL   string
	etcd      *process
	apiserver *process
	client    *http.Client
}

// Start starts a control plane with its files in dir, a separate folder, and waits until it
// is ready. It dies with this process.
func Start(ctx context.Context, dir string) (*Plane, error) {
	bin, err := Programs()
	if err != nil {
		return nil, err
	}
	ports, err := FreePorts(3)
	if err != nil {
		return nil, err
	}
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	p := &Plane{URL: "https://" + at(0), Dir: dir, bin: bin, etcdURL: "http://" + at(1)}
	if err := p.write(); err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.CA)
	p.client = &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true},
	}
	p.etcd, err = p.run("etcd",
		"--data-dir="+p.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+p.etcdURL, "--advertise-client-urls="+p.etcdURL,
		"--listen-peer-urls=http://"+at(2))
	if err == nil {
		err = p.StartAPIServer(ctx)
	}
	if err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

// StartAPIServer starts the API server (again) and waits until it is ready.
func (p *Plane) StartAPIServer(ctx context.Context) (err error) {
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(p.URL, "https://"))
	p.apiserver, err = p.run("kube-apiserver",
		"--etcd-servers="+p.etcdURL,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port="+port,
		"--tls-cert-file="+p.path("apiserver.crt"), "--tls-private-key-file="+p.path("apiserver.key"), "--cert-dir="+p.path("certs"),
		"--authorization-mode=RBAC", "--token-auth-file="+p.path("tokens.csv"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+p.path("sa.key"), "--service-account-signing-key-file="+p.path("sa.key"),
		"--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true",
		"--endpoint-reconciler-type=none",
		"--audit-policy-file="+p.path("audit.yaml"), "--audit-log-path="+p.path("audit.log"),
		"--shutdown-delay-duration=0s", "--profiling=false")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startsWithin)
	defer cancel()
	for {
		err := p.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.apiserver.done:
			return fmt.Errorf("kube-apiserver ended: %w\n%s", p.apiserver.err, tail(p.path("kube-apiserver.log")))
		case <-p.etcd.done:
			return fmt.Errorf("etcd ended: %w\n%s", p.etcd.err, tail(p.path("etcd.log")))
		case <-ctx.Done():
			return fmt.Errorf("kube-apiserver is not ready: %w\n%s", err, tail(p.path("kube-apiserver.log")))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (p *Plane) ready(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+"/readyz", nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+AdminToken)
	answer, err := p.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(answer.Body, 4096))
		return fmt.Errorf("status is %s: %s", answer.Status, body)
	}
	return nil
}

// KillAPIServer kills the API server, as kill -9 does.
func (p *Plane) KillAPIServer() { p.apiserver.kill() }

// Stop stops the control plane. Dir stays.
func (p *Plane) Stop() {
	p.apiserver.kill()
	p.etcd.kill()
}

// Compact makes etcd forget all past revisions: a watch that resumes from one of them gets
// 410 Gone, once the API server has forgotten them as well.
func (p *Plane) Compact() error {
	var revision struct{ Header struct{ Revision string } }
	if err := p.askEtcd("range", `{"key":"AA==","limit":"1"}`, &revision); err != nil {
		return err
	}
	return p.askEtcd("compaction", `{"revision":"`+revision.Header.Revision+`","physical":true}`, nil)
}

func (p *Plane) askEtcd(what, body string, into any) error {
	answer, err := p.client.Post(p.etcdURL+"/v3/kv/"+what, "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	switch {
	case err != nil:
		return err
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("etcd's %s: status is %s: %s", what, answer.Status, b)
	case into == nil:
		return nil
	}
	return json.Unmarshal(b, into)
}

// Kubeconfig returns a kubeconfig with the bearer token, for the API server at url, which is
// URL or a proxy in front of it.
func (p *Plane) Kubeconfig(url, token string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: testbed, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: user, user: {token: %q}}]
contexts: [{name: testbed, context: {cluster: testbed, user: user}}]
current-context: testbed
`, url, base64.StdEncoding.EncodeToString(p.CA), token)
}

// Rejected returns what the API server has answered 401 or 403 to users other than admin: "user verb resource".
func (p *Plane) Rejected() ([]string, error) {
	log, err := os.ReadFile(p.path("audit.log"))
	if err != nil {
		return nil, err
	}
	var rejected []string
	for line := range bytes.Lines(log) {
		var e struct {
			Verb, RequestURI string
			User             struct{ Username string }
			ResponseStatus   struct{ Code int }
		}
		if json.Unmarshal(line, &e) == nil && (e.ResponseStatus.Code == 401 || e.ResponseStatus.Code == 403) {
			rejected = append(rejected, e.User.Username+" "+e.Verb+" "+e.RequestURI)
		}
	}
	return rejected, nil
}

func (p *Plane) path(name string) string { return filepath.Join(p.Dir, name) }

// write writes the files that the programs read.
func (p *Plane) write() error {
	files, err := secrets()
	if err != nil {
		return err
	}
	p.CA = files["ca.crt"]
	files["tokens.csv"] = []byte(AdminToken + `,admin,1000,"system:masters"` + "\n")
	files["audit.yaml"] = []byte(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules: [{level: None, users: [admin, "system:apiserver", "system:anonymous"]}, {level: Metadata}]
`)
	for name, content := range files {
		if err := os.WriteFile(p.path(name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// FreePorts returns ports of the loopback interface on which no program listens. They are below
// those that connections get, so that none takes one before a program listens.
func FreePorts(n int) (ports []int, err error) {
	for range 1000 {
		if len(ports) == n {
			return ports, nil
		}
		port := 22_000 + rand.IntN(10_000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		defer l.Close() // all of them at the end, so that they differ
		ports = append(ports, port)
	}
	return nil, errors.New("no port is free")
}

// A process is a started program, until its end has been noticed.
type process struct {
	*exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // valid after that
}

// run starts a program that writes to NAME.log.
func (p *Plane) run(name string, args ...string) (*process, error) {
	log, err := os.OpenFile(p.path(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	command := exec.Command(filepath.Join(p.bin, name), args...)
	command.Stdout, command.Stderr = log, log
	command.Dir = p.Dir
	started := &process{Cmd: command, done: make(chan struct{})}
	if err := Spawn(command); err != nil {
		return nil, err
	}
	go func() {
		started.err = command.Wait()
		close(started.done)
	}()
	return started, nil
}

// kill ends a process, if it still runs.
func (p *process) kill() {
	if p != nil {
		_ = p.Process.Kill()
		<-p.done
	}
}

// tail returns the last lines of a file.
func tail(name string) []byte {
	b, _ := os.ReadFile(name)
	return b[max(0, len(b)-3000):]
}
