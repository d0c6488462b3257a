// Package k8s_test checks what no single package can: that the program links no more than
// it needs, and that the documentation is true.
package k8s_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/herdshield/shield/k8s/testbed/must"
)

// The program links only the needed parts of client-go: all of it is 27 MB more.
func TestClientGoIsNarrow(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./cmd/shield-ingress")
	cmd.Stderr = os.Stderr
	out := must.Get(cmd.Output())(t)
	n := 0
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		if strings.HasPrefix(name, "k8s.io/") {
			n++
		}
		for _, heavy := range []string{"k8s.io/client-go/kubernetes", "k8s.io/client-go/informers", "k8s.io/client-go/tools/leaderelection", "k8s.io/client-go/tools/events", "sigs.k8s.io/controller-runtime"} {
			if name == heavy || strings.HasPrefix(name, heavy+"/") {
				t.Errorf("shield-ingress depends on %s", name)
			}
		}
	}
	if n == 0 || n > 130 { // 110 in 2026
		t.Errorf("shield-ingress depends on %d packages of Kubernetes; want up to 130", n)
	}
}
