package accesslog

import (
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	_ "github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/loadtest/clients"
)

// loads checks that Caddy takes a Caddyfile.
func loads(t *testing.T, caddyfile string) {
	t.Helper()
	config, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Fatalf("%v\n%s", err, caddyfile)
	}
	for _, w := range warnings {
		t.Errorf("%v\n%s", w, caddyfile)
	}
	var c caddy.Config
	if err := caddy.StrictUnmarshalJSON(config, &c); err != nil {
		t.Fatal(err)
	}
	c.Admin = &caddy.AdminConfig{Disabled: true}
	if err := caddy.Validate(&c); err != nil {
		t.Errorf("%v\n%s", err, caddyfile)
	}
}

// The suggested Caddyfile loads, and has the expected content.
func TestSuggest(t *testing.T) {
	for _, c := range []struct {
		name string
		e    Estimate
		want []string
		not  []string
	}{
		{"nothing known", Estimate{}, []string{"\tconcurrency adaptive {", "initial 4\n", "not in the log"}, []string{"capacity"}},
		{"never full", Estimate{Responses: Responses{Peak: 481.7}, Concurrency: Concurrency{Peak: 12.3}}, []string{"\t# capacity 481/s\n", "initial 25\n"}, []string{"\tcapacity"}},
		{"full", Estimate{Responses: Responses{Peak: 500, Full: 98.76}, Concurrency: Concurrency{Peak: 12.3}}, []string{"\n\t\tcapacity 98.7/s\n"}, []string{"# capacity", "\tmax "}},
		{"very slow", Estimate{Responses: Responses{Full: 0.012345}}, []string{"capacity 0.0123/s\n"}, nil},
		{"very fast", Estimate{Responses: Responses{Full: 1234567}, Concurrency: Concurrency{Peak: 3e6}}, []string{"capacity 1230000/s\n", "initial 25000\n", "max 100000\n"}, nil},
		{"large", Estimate{Concurrency: Concurrency{Peak: 200}}, []string{"initial 400\n", "max 1600\n"}, nil},
		{"give up", Estimate{Judged: 10, Returns: []Behaviour{
			{Policy: clients.Fixed{Gap: time.Second}, Share: 0.6},
			{Policy: clients.MaxAttempts{N: 3, Policy: clients.Exact{}}, Share: 0.4},
		}}, []string{"max 59s\n", "# 40.0 % of the clients", "10 rejected clients"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.e.Suggest()
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("no %q in:\n%s", want, got)
				}
			}
			for _, not := range c.not {
				if strings.Contains(got, not) {
					t.Errorf("%q in:\n%s", not, got)
				}
			}
			loads(t, got)
		})
	}
}
