// Package must ends a test at an error that is not its subject.
package must

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/k8s/testbed/controlplane"
)

// Get returns what a function has returned, unless with an error: must.Get(os.ReadFile(path))(t).
func Get[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Do(t, err)
		return v
	}
}

// Do ends the test if there is an error.
func Do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Read returns the text of a file.
func Read(t testing.TB, path string) string {
	t.Helper()
	return string(Get(os.ReadFile(path))(t))
}

// Program returns the path of shield-ingress, which Go links into its cache, once for all tests.
func Program(t testing.TB) string {
	t.Helper()
	var path []byte
	for range 2 { // the first time, a program that is not there yet is elsewhere
		path = Get(exec.Command("go", "run", "-exec", "echo", "github.com/herdshield/shield/k8s/cmd/shield-ingress").Output())(t)
	}
	return strings.TrimSpace(string(path))
}

// Plane starts a control plane, and returns the path of its admin's kubeconfig, in a folder for what commands
// write. Without its programs the test is skipped, or fails where SHIELD_K8S_REQUIRED is 1.
func Plane(t testing.TB) (kubeconfig string) {
	t.Helper()
	dir := Get(os.MkdirTemp("", "shield-plane-"))(t) // not t.TempDir: what is killed may still write there
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	plane, err := controlplane.Start(t.Context(), dir)
	if errors.Is(err, controlplane.ErrMissing) && os.Getenv("SHIELD_K8S_REQUIRED") != "1" {
		t.Skip(err)
	}
	Do(t, err)
	t.Cleanup(plane.Stop)
	kubeconfig = filepath.Join(dir, "kubeconfig")
	Do(t, os.WriteFile(kubeconfig, plane.Kubeconfig(plane.URL, controlplane.AdminToken), 0o600))
	return kubeconfig
}

// FreePorts returns ports of the loopback interface on which no program listens.
func FreePorts(t testing.TB, n int) []int {
	t.Helper()
	return Get(controlplane.FreePorts(n))(t)
}

// Certificate returns a certificate that its own key signs, for hosts, of which cn is the name by
// which tests know it. It is valid for a day, until this time.
func Certificate(t testing.TB, cn string, until time.Time, hosts ...string) *tls.Certificate {
	t.Helper()
	key := Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: cn}, DNSNames: hosts,
		NotBefore: until.Add(-24 * time.Hour), NotAfter: until,
	}
	der := Get(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// SecretData returns the data of a Secret with a certificate.
func SecretData(t testing.TB, c *tls.Certificate) map[string][]byte {
	t.Helper()
	return map[string][]byte{
		"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}),
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: Get(x509.MarshalPKCS8PrivateKey(c.PrivateKey))(t)}),
	}
}
