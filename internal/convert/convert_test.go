package convert

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/herdshield/shield/caddymodule"
)

var update = flag.Bool("update", false, "write the golden files anew")

// load adapts and provisions a Caddyfile as Caddy does.
func load(t *testing.T, text string) {
	t.Helper()
	if err := caddy.Validate(adapted(t, text)); err != nil {
		t.Errorf("%v in\n%s", err, text)
	}
}

func adapted(t *testing.T, text string) *caddy.Config {
	t.Helper()
	config, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	for _, w := range warnings {
		t.Error(w)
	}
	var c caddy.Config
	if err := caddy.StrictUnmarshalJSON(config, &c); err != nil {
		t.Fatal(err)
	}
	c.Admin = &caddy.AdminConfig{Disabled: true}
	return &c
}

// freeAddress returns a loopback address at which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// answered serves a Caddyfile, and returns what a request for the host shop.test gets at an address:
// the status, and the target of a redirect or the body.
func answered(t *testing.T, text, address, path string) string {
	t.Helper()
	if err := caddy.Run(adapted(t, text)); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	defer func() { _ = caddy.Stop() }()
	r, err := http.NewRequest(http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host, r.Close = "shop.test", true
	resp, err := http.DefaultTransport.RoundTrip(r)
	if errors.Is(err, io.EOF) {
		return "EOF"
	}
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSuffix(fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Location"), string(body)), " ")
}

// golden compares a result with a file beside its input, and loads it.
func golden(t *testing.T, name string, got Result) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got.Caddyfile), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got.Caddyfile {
		t.Errorf("%s differs; got:\n%s", path, got.Caddyfile)
	}
	load(t, got.Caddyfile)
}

// missing returns the notes of what is not converted, a line each.
func missing(r Result) string {
	var b strings.Builder
	for _, n := range r.Notes {
		if n.Kind == Missing {
			b.WriteString(strings.Join(n.At, ", ") + ": " + n.Text + "\n")
		}
	}
	return b.String()
}
