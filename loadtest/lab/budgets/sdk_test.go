package budgets

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/gzhttp"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/internal/fakellm"
	"github.com/herdshield/shield/loadtest/lab/must"
	"github.com/herdshield/shield/loadtest/lab/process"
)

var program string // shield's

func TestMain(m *testing.M) { os.Exit(process.Main(m, &program)) }

// caddyfile gives each request a budget of its own.
const caddyfile = `{
	admin %s
	persist_config off
	log {
		level ERROR
	}
}

http://%s {
	shield {
		zone tokens {
			key {header.X-Request}
			unit tokens
			rate 1/h
			burst 5000
			cost {header.X-Deposit}
			settle usage
		}
	}
	reverse_proxy %s
}
`

const burst = 5000

// What SDKs report as used is what their keys are charged, for whole responses and streams, compressed and not. Streams that are
// cut off cost what the SDK has heard of until then, but at least the deposit.
func TestSDKs(t *testing.T) {
	node := process.Node(t, "openai")
	model := &fakellm.Server{PerToken: time.Millisecond}
	var zipped atomic.Int64
	cut := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		events, _ := strconv.Atoi(r.Header.Get("X-Cut"))
		model.ServeHTTP(&cutter{w, events}, r)
	})
	zip := must.Get(gzhttp.NewWrapper(gzhttp.MinSize(1)))(t)(cut)
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Gzip") != "1" {
			cut.ServeHTTP(w, r)
			return
		}
		defer func() {
			if w.Header().Get("Content-Encoding") == "gzip" {
				zipped.Add(1)
			}
		}()
		zip.ServeHTTP(w, r)
	}))
	t.Cleanup(behind.Close)
	folder, address, admin := t.TempDir(), process.Free(t), process.Free(t)
	config := filepath.Join(folder, "Caddyfile")
	must.Do(t, os.WriteFile(config, fmt.Appendf(nil, caddyfile, admin, address, strings.TrimPrefix(behind.URL, "http://")), 0o600))
	stop := must.Get(process.Start(t.Context(), exec.Command(program, "run", "--config", config), filepath.Join(folder, "shield.log"), "tcp", address))(t)
	t.Cleanup(stop)

	cmd := exec.CommandContext(t.Context(), node, "ask.mjs", "http://"+address)
	cmd.Dir = "npm"
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	requests, cuts, all := 0, 0, 0
	for line := range strings.Lines(string(out)) {
		var sdk struct {
			Request         string
			Tokens, Deposit int
			Error           string
		}
		if err := json.Unmarshal([]byte(line), &sdk); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		want := sdk.Tokens
		if sdk.Deposit == 0 {
			all += want
		} else if cuts++; sdk.Error == "" {
			t.Errorf("%s: it was not cut off", sdk.Request)
		} else {
			want = max(want, sdk.Deposit)
		}
		got := charged(t, admin, sdk.Request, want)
		if got != want {
			t.Errorf("%s: the SDK reports %d, %d were charged; want %d", sdk.Request, sdk.Tokens, got, want)
		}
		requests++
	}
	if n := zipped.Load(); requests != 20 || cuts != 8 || n != 10 || all < 12*30 {
		t.Errorf("%d requests, %d of them cut off, %d compressed, %d tokens in the others; want 20, 8, 10, and 30 for each", requests, cuts, n, all)
	}
}

// A cutter breaks the connection after so many events; 0: never.
type cutter struct {
	http.ResponseWriter
	left int
}

func (c *cutter) FlushError() error {
	if err := http.NewResponseController(c.ResponseWriter).Flush(); c.left != 1 {
		c.left--
		return err
	}
	panic(http.ErrAbortHandler)
}

// charged returns what a key has been charged. A client may have its response a moment before that is settled, so it asks again
// until that is as wanted, for two seconds.
func charged(t *testing.T, admin, key string, want int) (tokens int) {
	t.Helper()
	for end := time.Now().Add(2 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var is adminapi.ExplainStatus
		if must.JSON(t, "http://"+admin+"/shield/explain?client="+url.QueryEscape(key), &is); len(is.Shields) != 1 || len(is.Shields[0].Zones) != 1 {
			t.Fatalf("%+v", is)
		}
		if tokens = burst - is.Shields[0].Zones[0].Tokens; tokens == want || time.Now().After(end) {
			return tokens
		}
	}
}
