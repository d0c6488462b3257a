package livetest

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/herdshield/shield/k8s/testbed/must"
)

// Endpoints must not have addresses of 127.0.0.0/8, the API server says. So all of
// this runs in a network of its own, in which every address of pods is this machine.
const pods = "10.244.0.0/16"

// inOwnNetwork runs this program again in a separate network namespace, and returns its exit
// code. It needs Linux, and either root or user namespaces.
func inOwnNetwork() int {
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Env = append(os.Environ(), ownNetwork+"=1")
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	if err := c.Run(); err != nil {
		if exit := c.ProcessState.ExitCode(); exit > 0 {
			return exit
		}
		fmt.Fprintln(os.Stderr, "a network of its own:", err)
		return 1
	}
	return 0
}

// ownNetwork is set in the environment of a program in such a namespace.
const ownNetwork = "SHIELD_LIVETEST_NETWORK"

// setUpNetwork makes every address of pods this machine.
func setUpNetwork() error {
	for _, args := range []string{"link set lo up", "route add local " + pods + " dev lo"} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
	}
	return nil
}

type Process struct {
	t                   testing.TB
	cmd                 *exec.Cmd
	HTTP, HTTPS, Status int    // ports
	log                 string // a file
	ended               chan struct{}
}

var program string // shield-ingress

// begin starts a shield-ingress and waits until it is ready. It ends with the test.
func begin(t testing.TB, kubeconfig, pod string, flags ...string) *Process {
	t.Helper()
	p := launch(t, kubeconfig, pod, flags...)
	eventually(t, 20*time.Second, "ready", func() bool { return p.probe("/readyz") == http.StatusOK })
	return p
}

// launch starts a shield-ingress, which ends with the test.
func launch(t testing.TB, kubeconfig, pod string, flags ...string) *Process {
	t.Helper()
	if program == "" {
		program = must.Program(t)
	}
	ports := must.FreePorts(t, 3)
	p := &Process{t: t, ended: make(chan struct{}), HTTP: ports[0], HTTPS: ports[1], Status: ports[2]}
	p.cmd = exec.Command(program, append([]string{
		"--kubeconfig", kubeconfig,
		"--http-port", strconv.Itoa(p.HTTP), "--https-port", strconv.Itoa(p.HTTPS), "--status-port", strconv.Itoa(p.Status),
		"--shutdown-delay", "0s", "--grace-period", "5s", "--service", "shield-ingress/missing",
	}, flags...)...)
	p.cmd.Env = append(os.Environ(), "POD_NAME="+pod, "POD_NAMESPACE=shield-ingress")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.log = filepath.Join(t.TempDir(), "log")
	p.cmd.Stderr = must.Get(os.Create(p.log))(t)
	must.Do(t, p.cmd.Start())
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.End(syscall.SIGTERM) // so that it gives up its lead
		for line := range strings.Lines(p.logs()) {
			if !json.Valid([]byte(line)) || strings.Contains(line, "panic:") || strings.Contains(line, "orbidden") {
				t.Errorf("the logs have %q", line)
			}
		}
		if t.Failed() {
			t.Logf("logs of %s:\n%s", pod, p.logs())
		}
	})
	return p
}

func (p *Process) logs() string { return must.Read(p.t, p.log) }

func (p *Process) End(signal syscall.Signal) {
	_ = p.cmd.Process.Signal(signal)
	<-p.ended
}

func (p *Process) probe(path string) int {
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", p.Status, path))
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// Get asks for a path of a host, and returns the status and the body.
func (p *Process) Get(host, path string) (int, string) {
	r := must.Get(http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", p.HTTP, path), nil))(p.t)
	r.Host = host
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

// Expect checks the status of a request, which is what it says, and the body, unless want has none.
func (p *Process) Expect(want, host, path, what string, args ...any) {
	p.t.Helper()
	status, body := p.Get(host, path)
	if wantStatus, wantBody, _ := strings.Cut(want, " "); strconv.Itoa(status) != wantStatus || wantBody != "" && body != wantBody {
		p.t.Errorf("%s: got %d %q, want %s", fmt.Sprintf(what, args...), status, body, want)
	}
}

// Serves waits until a path of a host is answered with this status.
func (p *Process) Serves(host, path string, status int, within time.Duration) time.Duration {
	p.t.Helper()
	return eventually(p.t, within, fmt.Sprintf("%s%s answered %d", host, path, status), func() bool {
		got, _ := p.Get(host, path)
		return got == status
	})
}

// Certificate returns the names in the certificate for a server name.
func (p *Process) Certificate(name string) []string {
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.HTTPS), &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err != nil {
		return []string{err.Error()}
	}
	defer conn.Close()
	leaf := conn.ConnectionState().PeerCertificates[0]
	return append([]string{leaf.Subject.CommonName}, leaf.DNSNames...)
}

// Metric returns the value of a metric without labels.
func (p *Process) Metric(name string) float64 {
	p.t.Helper()
	values := p.metrics(name, "")
	if len(values) != 1 {
		p.t.Fatalf("there are %d metrics %s", len(values), name)
	}
	return values[0]
}

// Scheduled returns for how long its threads have run, and for how long they have waited for a processor.
func (p *Process) Scheduled() (ran, waited float64) {
	p.t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.cmd.Process.Pid))
	if err != nil || len(threads) == 0 {
		p.t.Fatalf("no threads: %v", err)
	}
	for _, thread := range threads {
		var r, w float64
		if b, err := os.ReadFile(thread); err == nil { // else it has ended
			must.Get(fmt.Sscan(string(b), &r, &w))(p.t)
		}
		ran, waited = ran+r, waited+w
	}
	return ran, waited
}

// A Pod is a backend with its own address.
type Pod struct {
	Name, Address string
	Served        atomic.Int64
	server        *http.Server
}

var podAddresses atomic.Uint32

// pod starts a backend that says its name.
func pod(t testing.TB, name string, handler http.HandlerFunc) *Pod {
	t.Helper()
	n := podAddresses.Add(1)
	p := &Pod{Name: name, Address: fmt.Sprintf("10.244.%d.%d", 1+n/250, 1+n%250)}
	p.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.Served.Add(1)
		if handler != nil {
			handler(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, name)
	})}
	l := must.Get(net.Listen("tcp", p.Address+":8080"))(t)
	go func() { _ = p.server.Serve(l) }()
	t.Cleanup(func() { _ = p.server.Shutdown(context.Background()) })
	return p
}

// Serve creates a Service with one pod.
func (s *Server) Serve(t testing.TB, of *corev1.Service, name string, handler http.HandlerFunc) *Pod {
	t.Helper()
	p := pod(t, name, handler)
	s.Create(t, of)
	s.Create(t, slice(of.Namespace, of.Name, p.Address))
	return p
}

// Replicas creates the Service own, behind which are pods of these names.
func (s *Server) Replicas(t testing.TB, namespace string, names ...string) {
	t.Helper()
	s.Create(t, service(namespace, "own"))
	all := slice(namespace, "own")
	for n, name := range names {
		all.Endpoints = append(all.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprint("10.244.9.", n+1)}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: name},
		})
	}
	s.Create(t, all)
}

// Objects of the tests, as small as they can be.

func class(name string) *networkingv1.IngressClass {
	return &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       networkingv1.IngressClassSpec{Controller: "herdshield.io/ingress"},
	}
}

func service(namespace, name string, annotations ...string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: pairs(annotations)},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}}},
	}
}

func slice(namespace, service string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
	}
	return s
}

// webIngress has one rule for each pair of a path and a Service.
func webIngress(namespace, name, host string, paths ...string) *networkingv1.Ingress {
	i := &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: networkingv1.IngressSpec{
			IngressClassName: new("shield"),
			Rules:            []networkingv1.IngressRule{{Host: host}},
		},
	}
	http := new(networkingv1.HTTPIngressRuleValue)
	for p := 0; p < len(paths); p += 2 {
		http.Paths = append(http.Paths, networkingv1.HTTPIngressPath{
			Path: paths[p], PathType: new(networkingv1.PathTypePrefix),
			Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
				Name: paths[p+1], Port: networkingv1.ServiceBackendPort{Number: 80},
			}},
		})
	}
	i.Spec.Rules[0].HTTP = http
	return i
}

func pairs(list []string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(list); i += 2 {
		m[list[i]] = list[i+1]
	}
	return m
}
