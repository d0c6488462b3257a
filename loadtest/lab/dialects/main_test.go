package dialects

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/lab/must"
	"github.com/herdshield/shield/loadtest/lab/process"
)

var program string // shield's

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(process.Main(m, &program))
}

const caddyfile = `{
	admin off
	persist_config off
	auto_https disable_redirects
	skip_install_trust
	storage file_system %[1]s
	grace_period 500ms
	servers {
		trusted_proxies static 127.0.0.0/8 # for clients with addresses of their own
		trusted_proxies_strict
	}
	log default {
		level ERROR
	}
}

%[2]s {
	%[5]s
	log {
		output file %[1]s/access.log {
			roll_disabled
		}
		format json
	}
	route {
		%[3]s
		reverse_proxy %[4]s
	}
}
`

type site struct {
	url string
	log string // its access log's file
}

// serve starts shield's program with handlers of a Caddyfile, for a scheme, before a backend.
func serve(t *testing.T, scheme, lines string, backend http.Handler) *site {
	t.Helper()
	behind := httptest.NewServer(backend)
	t.Cleanup(behind.CloseClientConnections) // streams end, and Close waits for them
	t.Cleanup(behind.Close)
	folder := t.TempDir()
	address, certificate := process.Free(t), ""
	if scheme == "https" {
		address = strings.Replace(address, "127.0.0.1", "localhost", 1)
		certificate = "tls internal"
	}
	s := &site{url: scheme + "://" + address, log: filepath.Join(folder, "access.log")}
	config := filepath.Join(folder, "Caddyfile")
	text := fmt.Sprintf(caddyfile, folder, s.url, lines, strings.TrimPrefix(behind.URL, "http://"), certificate)
	must.Do(t, os.WriteFile(config, []byte(text), 0o600))
	cmd := exec.Command(program, "run", "--config", config, "--adapter", "caddyfile")
	stop := must.Get(process.Start(t.Context(), cmd, filepath.Join(folder, "shield.log"), "tcp", address))(t)
	t.Cleanup(stop)
	return s
}

// A rejection is when a request was rejected, and how long it was told to wait.
type rejection struct {
	at   time.Time
	wait time.Duration
}

// rejections returns those in the access log, by the query of their requests, and how many have each status.
func (s *site) rejections(t *testing.T) (list map[string][]rejection, statuses map[int]int) {
	t.Helper()
	f := must.Get(os.Open(s.log))(t)
	defer f.Close()
	list, statuses = map[string][]rejection{}, map[int]int{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var e struct {
			Request struct{ URI string }
			At      float64 `json:"ts"`
			Status  int
			Shield  struct {
				Decision string
				WaitMs   int `json:"retry_after_ms"`
			}
		}
		must.Do(t, json.Unmarshal(lines.Bytes(), &e))
		if e.Shield.Decision == "reject" {
			_, query, _ := strings.Cut(e.Request.URI, "?")
			list[query] = append(list[query], rejection{time.UnixMicro(int64(e.At * 1e6)), time.Duration(e.Shield.WaitMs) * time.Millisecond})
			statuses[e.Status]++
		}
	}
	return list, statuses
}

// visits are when requests came to a backend, by their query.
type visits struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (v *visits) note(r *http.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.at == nil {
		v.at = map[string]time.Time{}
	}
	v.at[r.URL.RawQuery] = time.Now()
}

// slack is how far from its time a client may come, on a busy machine.
const slack = 300 * time.Millisecond

// check checks that all of n have come to the backend. It reports whether in no second more than the capacity and its burst allow, and those
// that were rejected at the time that they were told last, or so much later.
func (v *visits) check(t *testing.T, s *site, n, capacity int, late time.Duration) (onTime bool) {
	t.Helper()
	rejected, _ := s.rejections(t)
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.at) != n {
		t.Errorf("%d of %d have come to the backend", len(v.at), n)
	}
	onTime = true
	worst := time.Duration(0)
	for query, at := range v.at {
		told := rejected[query]
		if len(told) == 0 {
			continue
		}
		last := told[len(told)-1]
		off := at.Sub(last.at.Add(last.wait))
		worst = max(worst, off.Abs())
		onTime = onTime && off >= -slack && off <= late
	}
	all := slices.SortedFunc(maps.Values(v.at), time.Time.Compare)
	busiest := 0
	for i, from := range all {
		end, _ := slices.BinarySearchFunc(all, from.Add(time.Second), time.Time.Compare)
		busiest = max(busiest, end-i)
	}
	t.Logf("%d were rejected, once and more; the worst came %v from its time; the busiest second had %d", len(rejected), worst, busiest)
	if len(rejected) < n/2 {
		t.Errorf("%d were rejected; want most", len(rejected))
	}
	return onTime && busiest <= capacity+burst+2
}

// elsewhere serves an empty page, of an origin of its own.
func elsewhere(t *testing.T) (origin string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
	}))
	t.Cleanup(server.Close)
	return server.URL
}
