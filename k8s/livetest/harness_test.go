package livetest

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/herdshield/shield/k8s/testbed/controlplane"
	"github.com/herdshield/shield/k8s/testbed/must"
)

// server is the one control plane for all tests of this binary; nil: it cannot be
// started. Tests do not share namespaces, and none of them runs in parallel.
var server *Server

func TestMain(m *testing.M) {
	if os.Getenv(ownNetwork) == "" {
		os.Exit(inOwnNetwork())
	}
	if err := setUpNetwork(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	switch _, err := controlplane.Programs(); {
	case err == nil:
	case os.Getenv("SHIELD_K8S_REQUIRED") == "1":
		fmt.Fprintln(os.Stderr, err)
		return 1
	default:
		missing = err
		return m.Run() // they skip themselves
	}
	dir, err := os.MkdirTemp("", "livetest")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	begin := time.Now()
	plane, err := controlplane.Start(context.Background(), dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer plane.Stop()
	fmt.Printf("the API server was ready after %.1f s\n", time.Since(begin).Seconds())
	server = newServer(plane)
	return m.Run()
}

var missing error // why there is no server

// live returns the control plane, or skips the test.
func live(t testing.TB) *Server {
	t.Helper()
	if server == nil {
		t.Skip(missing)
	}
	return server
}

// A Server is the API server, as its admin sees it. Its methods end the test if they fail, except Do.
type Server struct {
	*controlplane.Plane
	client *rest.RESTClient
	scheme *runtime.Scheme
}

func newServer(plane *controlplane.Plane) *Server {
	s := &Server{Plane: plane, scheme: runtime.NewScheme()}
	config, err := clientcmd.RESTConfigFromKubeConfig(plane.Kubeconfig(plane.URL, controlplane.AdminToken))
	if err == nil {
		config.NegotiatedSerializer, config.GroupVersion = serializer.NewCodecFactory(s.scheme).WithoutConversion(), new(schema.GroupVersion)
		config.Timeout, config.QPS = 20*time.Second, -1
		s.client, err = rest.UnversionedRESTClientFor(config)
	}
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, networkingv1.AddToScheme, discoveryv1.AddToScheme,
		coordinationv1.AddToScheme, rbacv1.AddToScheme, authenticationv1.AddToScheme,
	} {
		err = errors.Join(err, add(s.scheme))
	}
	if err != nil {
		panic(err)
	}
	return s
}

type Object interface {
	runtime.Object
	metav1.Object
}

// Do sends a request with a body of JSON or YAML, unless it is nil, and decodes the answer into something, unless that is
// nil; nothing remains of what was in it. Responses that are not 2xx are errors of apimachinery's api/errors.
func (s *Server) Do(method, path, contentType string, body []byte, into any) error {
	b, err := s.client.Verb(method).RequestURI(path).SetHeader("Content-Type", contentType).Body(body).DoRaw(context.Background())
	if err != nil || into == nil {
		return err
	}
	fresh := reflect.New(reflect.TypeOf(into).Elem())
	if err := json.Unmarshal(b, fresh.Interface()); err != nil {
		return err
	}
	reflect.ValueOf(into).Elem().Set(fresh.Elem())
	return nil
}

// strict makes the API server reject fields that do not exist.
const strict = "?fieldValidation=Strict&fieldManager=livetest"

func (s *Server) path(t testing.TB, o Object) string {
	t.Helper()
	kinds, _, err := s.scheme.ObjectKinds(o)
	if err != nil {
		t.Fatal(err)
	}
	o.GetObjectKind().SetGroupVersionKind(kinds[0])
	resources, _ := meta.UnsafeGuessKindToResource(kinds[0])
	return path(kinds[0].GroupVersion(), o.GetNamespace(), resources.Resource)
}

func path(gv schema.GroupVersion, namespace, resource string) string {
	p := "/apis/" + gv.String()
	if gv.Group == "" {
		p = "/api/" + gv.Version
	}
	if namespace != "" {
		p += "/namespaces/" + namespace
	}
	return p + "/" + resource
}

func encode(t testing.TB, o any) []byte {
	t.Helper()
	return must.Get(json.Marshal(o))(t)
}

// Create creates an object, which becomes what the server has made of it.
func (s *Server) Create(t testing.TB, o Object) {
	t.Helper()
	path := s.path(t, o)
	if err := s.Do(http.MethodPost, path+strict, "application/json", encode(t, o), o); err != nil {
		t.Fatalf("create %s: %v", o.GetName(), err)
	}
}

// Patch merges a patch, in YAML or JSON, into an object or its subresource ("" or
// "status"), which becomes what the server has made of it.
func (s *Server) Patch(t testing.TB, o Object, subresource, patch string) {
	t.Helper()
	path := s.path(t, o) + "/" + o.GetName()
	if subresource != "" {
		path += "/" + subresource
	}
	body, err := yaml.YAMLToJSON([]byte(patch))
	if err == nil {
		err = s.Do(http.MethodPatch, path+strict, string(types.MergePatchType), body, o)
	}
	if err != nil {
		t.Fatalf("patch %s: %v", o.GetName(), err)
	}
}

func (s *Server) Delete(t testing.TB, o Object) {
	t.Helper()
	if err := s.Do(http.MethodDelete, s.path(t, o)+"/"+o.GetName(), "", nil, nil); err != nil {
		t.Fatalf("delete %s: %v", o.GetName(), err)
	}
}

func (s *Server) Get(t testing.TB, o Object) {
	t.Helper()
	if err := s.Do(http.MethodGet, s.path(t, o)+"/"+o.GetName(), "", nil, o); err != nil {
		t.Fatalf("get %s: %v", o.GetName(), err)
	}
}

func (s *Server) Events(t testing.TB, namespace string) []corev1.Event {
	t.Helper()
	var events corev1.EventList
	must.Do(t, s.Do(http.MethodGet, path(corev1.SchemeGroupVersion, namespace, "events"), "", nil, &events))
	return events.Items
}

// Namespace creates a namespace for one test, whose name begins with the given.
func (s *Server) Namespace(t testing.TB, name string) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"}}
	s.Create(t, ns)
	return ns.Name
}

// Token returns a bearer token of a ServiceAccount, which need not exist yet.
func (s *Server) Token(t testing.TB, namespace, name string) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	path := s.path(t, account)
	if err := s.Do(http.MethodPost, path, "application/json", encode(t, account), nil); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	request := new(authenticationv1.TokenRequest)
	must.Do(t, s.Do(http.MethodPost, path+"/"+name+"/token", "application/json", []byte(`{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{}}`), request))
	return request.Status.Token
}

// Kubeconfig returns the path of a kubeconfig for a token, at the server's URL or a proxy's.
func (s *Server) Kubeconfig(t testing.TB, url, token string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, os.WriteFile(file, s.Plane.Kubeconfig(url, token), 0o600))
	return file
}

func (s *Server) AdminKubeconfig(t testing.TB) string {
	t.Helper()
	return s.Kubeconfig(t, s.URL, controlplane.AdminToken)
}

// Restart ends the API server with kill -9, does something while it is not there, and starts it again.
func (s *Server) Restart(t testing.TB, between func()) {
	t.Helper()
	s.KillAPIServer()
	s.client.Client.CloseIdleConnections()
	if between != nil {
		between()
	}
	must.Do(t, s.StartAPIServer(t.Context()))
}

// onThisMachine returns how long something may take here that takes at most d on an idle machine:
// longer by the factor by which more programs want the processors than there are.
func onThisMachine(d time.Duration) time.Duration {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return d
	}
	load, _, _ := strings.Cut(string(b), " ")
	programs, _ := strconv.ParseFloat(load, 64) // without a number d stays
	return time.Duration(float64(d) * max(1, programs/float64(goruntime.NumCPU())))
}

// eventually waits until ok, and ends the test if that takes too long. It returns how long it took.
func eventually(t testing.TB, within time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for !ok() {
		if took := time.Since(begin); took > within && took > onThisMachine(within) {
			t.Fatalf("not within %v, after %v: %s", within, took, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(begin)
}

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
