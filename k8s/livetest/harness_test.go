package livetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	goruntime "runtime"
	"strconv"
	"strings"
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
