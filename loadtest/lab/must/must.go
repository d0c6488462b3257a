// Package must ends a test at an error that is not its subject.
package must

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"testing"
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

// JSON reads what a server says at an address.
func JSON(t testing.TB, address string, into any) {
	t.Helper()
	response := Get(http.Get(address))(t)
	defer response.Body.Close()
	if body := Get(io.ReadAll(response.Body))(t); response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s: %s", address, response.Status, body)
	} else {
		Do(t, json.Unmarshal(body, into))
	}
}
