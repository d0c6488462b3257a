// Package compose runs packaging/compose as a container engine would, but for Grafana: the image is unpacked,
// its programs run in it as its user, and Debian's Prometheus reads what it scrapes.
package compose

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v3"

	"github.com/herdshield/shield/loadtest/lab/must"
	"github.com/herdshield/shield/loadtest/lab/process"
)

const (
	repository = "../../.."
	folder     = repository + "/packaging/compose/"
)

// project reads compose.yaml as Docker Compose does, against the schema of the Compose Specification.
func project(t *testing.T) *types.Project {
	t.Helper()
	o := must.Get(cli.NewProjectOptions([]string{folder + "compose.yaml"}))(t)
	return must.Get(o.LoadProject(t.Context()))(t)
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// Images of others are pinned, what is mounted is there for the image's user, and only this machine has access.
func TestComposeFile(t *testing.T) {
	p := project(t)
	own := "ghcr.io/herdshield/shield:v" + regexp.MustCompile(`(?m)^appVersion: (.*)$`).FindStringSubmatch(must.Read(t, repository+"/k8s/chart/Chart.yaml"))[1]
	mounts := 0
	for name, s := range p.Services {
		if s.Image != own && !regexp.MustCompile(`^[a-z]+/[a-z]+:v?[0-9.]+@sha256:[0-9a-f]{64}$`).MatchString(s.Image) {
			t.Errorf("the image of %s is %q; want %s, or one with a digest", name, s.Image, own)
		}
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s listens on %q; want 127.0.0.1", name, port.HostIP)
			}
		}
		for _, v := range s.Volumes {
			if v.Type != types.VolumeTypeBind {
				continue
			}
			mounts++
			if info, err := os.Stat(v.Source); err != nil || !info.Mode().IsRegular() || info.Mode()&0o4 == 0 || !v.ReadOnly {
				t.Errorf("%s mounts %s: %v, %v; want a file that all users can read, mounted read-only", name, v.Source, info, err)
			}
		}
	}
	if len(p.Services) != 4 || mounts != 6 {
		t.Errorf("there are %d services with %d files; want 4 with 6", len(p.Services), mounts)
	}
}

// Grafana finds the board where compose.yaml mounts it, and Prometheus at its service.
func TestGrafanaIsProvisioned(t *testing.T) {
	mounted := map[string]string{}
	for _, v := range project(t).Services["grafana"].Volumes {
		mounted[v.Target] = v.Source
	}
	var sources struct {
		Datasources []struct{ Type, URL string }
	}
	var boards struct {
		Providers []struct{ Options struct{ Path string } }
	}
	for target, into := range map[string]any{"datasources/shield.yml": &sources, "dashboards/shield.yml": &boards} {
		must.Do(t, yaml.Unmarshal([]byte(must.Read(t, mounted["/etc/grafana/provisioning/"+target])), into))
	}
	if len(sources.Datasources) != 1 || sources.Datasources[0].Type != "prometheus" || sources.Datasources[0].URL != "http://prometheus:9090" {
		t.Errorf("the sources are %+v", sources)
	}
	if len(boards.Providers) != 1 {
		t.Fatalf("the providers are %+v", boards)
	}
	var board struct{ UID string }
	if err := json.Unmarshal([]byte(must.Read(t, mounted[boards.Providers[0].Options.Path+"/shield.json"])), &board); err != nil || board.UID != "shield" {
		t.Errorf("the board is %q: %v; want shield, as in its address in compose.yaml", board.UID, err)
	}
}

// program is the folder with ARCH/shield, a static program, which CI has built for other steps.
const program = "SHIELD_PROGRAMS"

// inside says to the test that it has a network and mounts of its own.
const inside = "SHIELD_COMPOSE_INSIDE"

func TestServices(t *testing.T) {
	if os.Getenv(inside) != "" {
		runServices(t)
		return
	}
	if os.Getenv(program) == "" {
		t.Skipf("want %s=FOLDER with ARCH/shield, built with CGO_ENABLED=0", program)
	}
	if os.Getuid() != 0 {
		t.Fatal("want root, for a network and mounts of its own")
	}
	self := must.Get(os.Executable())(t)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestServices$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if t.Log(string(out)); err != nil || !bytes.Contains(out, []byte("--- PASS: TestServices")) {
		t.Error(err)
	}
}

// runServices starts what compose.yaml says. All services are at 127.0.0.1, so no two may have the same port.
func runServices(t *testing.T) {
	p := project(t)
	hosts := "127.0.0.1 localhost proxy " + strings.Join(p.ServiceNames(), " ") + "\n"
	names := filepath.Join(t.TempDir(), "hosts")
	must.Do(t, os.WriteFile(names, []byte(hosts), 0o644))
	output(t, "sh", "-ec", `ip link set lo up; mount --make-rprivate /; mount --bind "$0" /etc/hosts`, names)

	archive := pack(t)
	box := unpack(t, archive)
	box.mount(t, p.Services["shield"])
	box.file(t, "/etc/hosts", hosts)
	box.start(t, "backend:9000", p.Services["backend"].Command)
	box.start(t, "shield:8080", p.Services["shield"].Command)

	// Ten requests at once are the burst.
	answers := map[string]int{}
	for range 20 {
		status, body := get(t, "http://127.0.0.1:8080/")
		answers[strconv.Itoa(status)+" "+body[:min(len(body), 5)]]++
	}
	if answers["200 hello"] < 10 || answers[`429 {"typ`] == 0 {
		t.Errorf("the responses are %v; want at least ten of the backend, and rejections", answers)
	}
	box.start(t, "proxy:8081", []string{"proxy", "--from", ":8081", "--to", "backend:9000", "--rate", "5/s", "--admin", "localhost:2020"})
	if status, body := get(t, "http://127.0.0.1:8081/"); status != 200 || body != "hello" {
		t.Errorf("shield proxy answers %d, %q", status, body)
	}
	check := p.Services["shield"].HealthCheck.Test
	if check[0] != "CMD" {
		t.Fatalf("the health check is %q", check)
	}
	cmd := box.command(t, check[1:])
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("shop")) {
		t.Errorf("the health check: %v\n%s", err, out)
	}
	scrape(t, p.Services["prometheus"])
}

// pack returns the image's archive, made twice.
func pack(t *testing.T) string {
	t.Helper()
	var archives []string
	for range 2 {
		out := t.TempDir()
		output(t, repository+"/packaging/images", "-p", os.Getenv(program), "-o", out, "shield")
		archives = append(archives, filepath.Join(out, "shield.tar"))
	}
	if must.Read(t, archives[0]) != must.Read(t, archives[1]) {
		t.Error("the same program made two images")
	}
	return archives[0]
}

// A box is an unpacked image.
type box struct {
	root            string
	User            string
	Entrypoint, Cmd []string
	Env             []string
	WorkingDir      string
	ExposedPorts    map[string]struct{}
}

func unpack(t *testing.T, archive string) (b box) {
	t.Helper()
	at := t.TempDir()
	b.root = filepath.Join(t.TempDir(), "root")
	output(t, "tar", "-C", at, "-xf", archive)
	part := func(path string, into any) {
		must.Do(t, json.Unmarshal([]byte(must.Read(t, path)), into))
	}
	blob := func(digest string) string { return filepath.Join(at, "blobs", strings.Replace(digest, ":", "/", 1)) }
	var index struct{ Manifests []struct{ Digest string } }
	part(filepath.Join(at, "index.json"), &index)
	var manifest struct {
		Config struct{ Digest string }
		Layers []struct{ Digest string }
	}
	part(blob(index.Manifests[0].Digest), &manifest)
	part(blob(manifest.Config.Digest), &struct{ Config *box }{&b})
	must.Do(t, os.Mkdir(b.root, 0o755))
	output(t, "tar", "-C", b.root, "--same-owner", "-xpzf", blob(manifest.Layers[0].Digest))
	return b
}

func (b box) file(t *testing.T, target, content string) {
	t.Helper()
	path := filepath.Join(b.root, target)
	must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(t, os.WriteFile(path, []byte(content), 0o644))
}

// mount copies a service's files to where they are mounted. A volume gets its owner from the image.
func (b box) mount(t *testing.T, s types.ServiceConfig) {
	t.Helper()
	for _, v := range s.Volumes {
		if v.Type == types.VolumeTypeBind {
			b.file(t, v.Target, must.Read(t, v.Source))
			continue
		}
		if b.User == "" { // the image is not here
			continue
		}
		if info, err := os.Stat(filepath.Join(b.root, v.Target)); err != nil || fmt.Sprintf("%d:%d", info.Sys().(*syscall.Stat_t).Uid, info.Sys().(*syscall.Stat_t).Gid) != b.User {
			t.Errorf("%s in the image: %v, %v; want a folder of %s", v.Target, info, err, b.User)
		}
	}
	if s.ReadOnly {
		must.Do(t, os.Remove(filepath.Join(b.root, "tmp"))) // where the user could write otherwise
	}
}

// command runs the program at the given path in the box as its user, and with its environment only.
func (b box) command(t *testing.T, args []string) *exec.Cmd {
	t.Helper()
	u, g, _ := strings.Cut(b.User, ":")
	uid := must.Get(strconv.ParseUint(u, 10, 32))(t)
	gid, err := strconv.ParseUint(g, 10, 32)
	if err != nil || uid == 0 || gid == 0 {
		t.Fatalf("the image's user is %q", b.User)
	}
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir, cmd.Env = b.WorkingDir, append([]string{}, b.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: b.root, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	return cmd
}

// start runs the image's program with a service's command, or the image's own, until the test ends.
func (b box) start(t *testing.T, address string, command []string) {
	t.Helper()
	if command == nil {
		command = b.Cmd
	}
	service, port, _ := strings.Cut(address, ":")
	if _, ok := b.ExposedPorts[port+"/tcp"]; service == "shield" && !ok {
		t.Errorf("the image exposes %v; want %s", b.ExposedPorts, port)
	}
	log := filepath.Join(t.TempDir(), service)
	stop := must.Get(process.Start(t.Context(), b.command(t, slices.Concat(b.Entrypoint, command)), log, "tcp", address))(t)
	t.Cleanup(stop)
}

// scrape runs Prometheus with its service's files until it has scraped the shield.
func scrape(t *testing.T, s types.ServiceConfig) {
	t.Helper()
	b := box{root: t.TempDir()}
	b.mount(t, s)
	config := filepath.Join(b.root, "etc/prometheus/prometheus.yml")
	output(t, "promtool", "check", "config", config)
	cmd := exec.CommandContext(t.Context(), "prometheus", "--config.file="+config, "--storage.tsdb.path="+t.TempDir())
	stop := must.Get(process.Start(t.Context(), cmd, filepath.Join(t.TempDir(), "prometheus"), "tcp", "prometheus:9090"))(t)
	defer stop()
	said := ""
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if _, said = get(t, "http://prometheus:9090/api/v1/query?query=caddy_shield_requests_total"); strings.Contains(said, `"shield":"shop"`) {
			break
		}
	}
	if !strings.Contains(said, `"shield":"shop"`) {
		t.Errorf("Prometheus knows nothing of the shield: %s", said)
	}
	if _, rules := get(t, "http://prometheus:9090/api/v1/rules"); !strings.Contains(rules, "ShieldOverloaded") {
		t.Errorf("Prometheus has no alerts: %s", rules)
	}
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		return 0, fmt.Sprint(err)
	}
	defer r.Body.Close()
	b := must.Get(io.ReadAll(r.Body))(t)
	return r.StatusCode, string(b)
}
