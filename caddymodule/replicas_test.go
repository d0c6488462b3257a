package caddymodule

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/caddymodule/store"
	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/redis"
	"github.com/herdshield/shield/share/redis/testserver"
)

// storeStatus returns the status of the running config.
func storeStatus(t *testing.T) adminapi.Status {
	t.Helper()
	return activeSite(t).app.Status(true)
}

// together waits until what the running config shares is shared with that many replicas.
func together(t *testing.T, replicas int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d replicas share", replicas), func() bool {
		s := storeStatus(t)
		ok := s.Store != nil && s.Store.Up
		for _, one := range s.Shields {
			ok = ok && one.Sharing != nil && !one.Sharing.Alone && one.Sharing.Replicas == replicas
		}
		return ok
	})
}

// A config with every option of a store works with a server that asks for all of it, and
// neither log nor status shows a secret.
func TestStoreWithAllOptions(t *testing.T) {
	testserver.Each(t, func(t *testing.T, program string) {
		server, ca := testserver.StartTLS(t, program)
		server.Do(append([]string{"ACL", "SETUSER", "shop", "on", ">correct-horse"}, strings.Fields(redis.Rights("shop"))...)...)
		server.Do("CONFIG", "SET", "tls-auth-clients", "yes")
		dir := t.TempDir()
		password, file := filepath.Join(dir, "password"), filepath.Join(dir, "shield.log")
		if err := os.WriteFile(password, []byte("correct-horse\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("SHIELD_TEST_STORE", storeSecret)
		serveSite(t, "{"+globalOptions+"log shield {\noutput file "+file+"\nformat json\ninclude shield\n}\n"+`
			shield {
				store redis `+server.Addr+` {
					username shop
					password {file.`+password+`}
					tls `+ca+`
					tls_client `+ca+` `+filepath.Join(filepath.Dir(ca), "key.pem")+`
					prefix shop
					secret {env.SHIELD_TEST_STORE}
					replicas 5
				}
			}
		}
		`+bound+"shield {\nname api\ncapacity 10/s burst 7\n}\nrespond ok\n}")
		status := func() (redis.Status, share.Sharing) {
			is := storeStatus(t)
			return *is.Store, *is.Shields[0].Sharing
		}
		if _, is := status(); is.Alone && is.Replicas != 5 { // the store may have told already
			t.Errorf("before the store has told there are %+v; want 5 replicas", is)
		}
		eventually(t, "the store is up", func() bool { s, is := status(); return s.Up && !is.Alone })
		shown := fmt.Sprint(status())
		_ = caddy.Stop()
		logged, err := os.ReadFile(file)
		if err != nil || strings.Contains(shown+string(logged), "horse") {
			t.Errorf("a secret is shown: %s\n%s, %v", shown, logged, err)
		}
	})
}

// A failingLoader is a permit of another config from which none can be loaded.
type failingLoader struct{}

func init() { caddy.RegisterModule(failingLoader{}) }

func (failingLoader) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.config_loaders.shield_test_fails", New: func() caddy.Module { return new(failingLoader) }}
}

func (*failingLoader) LoadConfig(caddy.Context) ([]byte, error) { return nil, errHook }

// A reload with the same store keeps the connection; one that shares the same does not even
// interrupt the exchanges; another definition is another unit; and a config that fails to
// load changes nothing.
func TestStoreOverReloads(t *testing.T) {
	testserver.Each(t, func(t *testing.T, program string) {
		server, machine := testserver.Start(t, program), testserver.Watch(t)
		config := func(burst int, more string) setup {
			return setup{
				apps:     fmt.Sprintf(`"shield": {"store": {"type": "redis", "address": [%q], "secret": %q, "replicas": 1}},`, server.Addr, storeSecret),
				handlers: fmt.Sprintf(`{"handler": "shield", "name": "api", "capacity": {"rate": 10, "burst": %d}}%s, %s`, burst, more, respondOK),
			}
		}
		connections := func() (ids []string) { // of shield's
			for line := range strings.Lines(server.Do("CLIENT", "LIST")) {
				if id, _, _ := strings.Cut(line, " "); strings.Contains(line, " cmd=eval") {
					ids = append(ids, id)
				}
			}
			return ids
		}
		r := start(t, config(50, ""))
		together(t, 1)
		before, unit := connections(), storeStatus(t).Shields[0].Sharing.Unit
		goesOn := func(after string) {
			t.Helper()
			if s := storeStatus(t).Shields[0].Sharing; machine.Prompt() && s.Alone || s.Unit != unit {
				t.Errorf("after %s it is %+v", after, s)
			}
		}
		for range 3 {
			r.load(config(50, `, {"handler": "shield", "name": "other", "zones": [{"rate": 1, "burst": 100}]}`))
			r.load(config(50, ""))
			goesOn("a reload")
		}
		if err := r.tryLoad(config(50, `, {"handler": "no_such"}`)); err == nil {
			t.Error("a bad config is loaded")
		}
		goesOn("a config that failed")
		// One that fails when its apps run already is dropped by Caddy, and not stopped.
		dropped := strings.Replace(string(config(70, "").json(r.addr)), `"persist": false`, `"persist": false, "load": {"module": "shield_test_fails"}`, 1)
		if err := caddy.Load([]byte(dropped), true); err == nil {
			t.Error("a config that cannot be loaded from elsewhere is loaded")
		}
		desk.Tend(shield.Now() + 2*store.Lasting) // one that is still there would take the place of the one that runs
		goesOn("a config that was dropped")
		r.load(config(60, ""))
		together(t, 1)
		if s := storeStatus(t).Shields[0].Sharing; s.Unit == unit || !strings.Contains(s.Unit, "burst 60") {
			t.Errorf("with another burst the unit is %q, and was %q", s.Unit, unit)
		}
		// Exchanges at the same time need more of them.
		after := connections()
		kept := !slices.ContainsFunc(before, func(id string) bool { return !slices.Contains(after, id) })
		if len(before) == 0 || len(after) > 8 || machine.Prompt() && !kept {
			t.Errorf("there were the connections %q before the reloads, and %q after; want the same, and at most 8", before, after)
		}
	})
}

// That the store is lost and back is told once each, in the log and as events.
func TestStoreIsLostAndBack(t *testing.T) {
	testserver.Each(t, func(t *testing.T, program string) {
		server, machine, file := testserver.Start(t, program), testserver.Watch(t), filepath.Join(t.TempDir(), "shield.log")
		newEvents()
		serveSite(t, "{"+globalOptions+"log shield {\noutput file "+file+"\nformat json\ninclude shield\n}\nevents {\non * shield_test_recorder\n}\n"+
			"shield {\nstore redis "+server.Addr+" {\nsecret \""+storeSecret+"\"\nreplicas 1\n}\n}\n}\n"+bound+"shield {\nname api\ncapacity 10/s burst 50\n}\nrespond ok\n}")
		told := func(event string) func() bool {
			return func() bool {
				activeSite(t).app.reportOnce(shield.Now())
				return slices.ContainsFunc(newEvents(), func(e string) bool { return strings.HasPrefix(e, event+" ") })
			}
		}
		together(t, 1)
		server.Kill()
		eventually(t, "the loss is told", told("shield_store_lost"))
		if s := storeStatus(t); s.Store.Up || !s.Shields[0].Sharing.Alone || s.Store.Error == "" {
			t.Errorf("without the store the status is %+v %+v", s.Store, s.Shields[0].Sharing)
		}
		server.Restart()
		eventually(t, "the return is told", told("shield_store_back"))
		together(t, 1)
		wantMetrics(t, activeSite(t).app, "caddy_shield_store_up{} 1", `caddy_shield_store_replicas{shield="api"} 1`, `caddy_shield_store_alone{shield="api"} 0`)
		_ = caddy.Stop()
		var lines []string
		for _, e := range logEntries(t, file) {
			lines = append(lines, fmt.Sprint(e["level"], ": ", e["msg"], " ", e["store"]))
		}
		if !machine.Prompt() { // a store that is slow is lost more than once, which is told, too
			slices.Sort(lines)
			lines = slices.Compact(lines)
			slices.Reverse(lines)
		}
		if want := []string{
			"warn: the store is unreachable; this replica applies its share of all limits until the store is back " + server.Addr,
			"info: the store is back " + server.Addr,
		}; !slices.Equal(lines, want) {
			t.Errorf("the log is:\n%s", strings.Join(lines, "\n"))
		}
	})
}
