package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/herdshield/shield/k8s/testbed/controlplane"
	"github.com/herdshield/shield/k8s/testbed/must"
)

// All scripts have their folders from node-env, and so where XDG_CACHE_HOME says, as the tests.
func TestScriptsAgreeOnFolders(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	for _, name := range []string{"SHIELD_K8S_BIN", "SHIELD_K8S_NODE"} {
		t.Setenv(name, "")
	}
	out := must.Get(exec.Command("bash", "-euc", `. ./node-env; echo "$bin $state"`).Output())(t)
	bin, _ := controlplane.Programs() // the error is that they are not there
	if want := bin + " " + filepath.Join(cache, "shield-k8s", "node"); strings.TrimSpace(string(out)) != want {
		t.Errorf("node-env says %s; want %s", out, want)
	}
	code := regexp.MustCompile(`(?m)^\s*#.*$`)
	for _, path := range []string{"build", "node-up", "node-down", "../nodetest/run", "../deploy/render"} {
		b := must.Get(os.ReadFile(path))(t)
		if text := code.ReplaceAllString(string(b), ""); strings.Contains(text, ".cache") || !strings.Contains(text, "node-env") {
			t.Errorf("%s has folders of its own; want those of node-env", path)
		}
	}
}

// A script that lacks packages names all of them at once.
func TestScriptsNameAllMissingPackages(t *testing.T) {
	out, err := exec.Command("bash", "-euc", `. ./node-env; need bash:bash /no/file.h:libfile-dev no-such-tool:tool`).CombinedOutput()
	if want := "want: apt-get install libfile-dev tool\n"; err == nil || !strings.HasSuffix(string(out), want) {
		t.Errorf("it says %q, %v; want %q", out, err, want)
	}
}
