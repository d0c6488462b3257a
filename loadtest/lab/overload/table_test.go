package overload

import (
	"os"
	"testing"
)

// TestTable prints how the limit does in every scenario. The rows of other projects
// are in loadtest/lab/competitors.
//
//	go -C loadtest/lab test ./overload -run '^TestTable$' -v -table
func TestTable(t *testing.T) {
	if !*table {
		t.Skip("needs -table: it only prints")
	}
	rows := []Row{None, Fixed(12), Alone, Shield}
	if err := Print(os.Stdout, rows); err != nil {
		t.Fatal(err)
	}
}
