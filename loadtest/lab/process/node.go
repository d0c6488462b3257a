package process

import (
	"os"
	"os/exec"
	"testing"
)

// Node returns the path of Node.js for a test of scripts in the folder npm that need a module there. Without them the test is skipped,
// but where CI must have them.
func Node(t testing.TB, module string) string {
	t.Helper()
	node, err := exec.LookPath("node")
	if err == nil {
		_, err = os.Stat("npm/node_modules/" + module)
	}
	if err != nil {
		if os.Getenv("SHIELD_BROWSER_REQUIRED") != "" {
			t.Fatalf("%v: want node, and npm ci --ignore-scripts in the folder npm", err)
		}
		t.Skipf("needs node, and npm ci --ignore-scripts in the folder npm: %v", err)
	}
	return node
}
