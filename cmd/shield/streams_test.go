package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/herdshield/shield/share/redis/testserver"
)

// Streams whose costs are read take at most 5 KiB more of the program's memory each, begin as soon as others, and are the same, byte for byte.
// With LONG=1 there are 10,000, or as many as the process may have files open for.
func TestManyStreams(t *testing.T) {
	streams := 500
	if os.Getenv("LONG") != "" {
		var files syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
			t.Fatal(err)
		}
		streams = min(10_000, int(files.Max-200)/2) // each has a connection to the program, and one behind it, on both sides
	}
	const event = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"one more word\"}}],\"usage\":null}\n\n"
	const begin = event + event + event
	const rest = event + "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":12,\"total_tokens\":20}}\n\ndata: [DONE]\n\n"
	var end chan struct{} // of the streams that are open
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, begin)
		_ = http.NewResponseController(w).Flush()
		if r.URL.Path == "/long" {
			<-end
		}
		_, _ = io.WriteString(w, rest)
	}))
	t.Cleanup(model.Close)
	type program struct {
		cmd        *exec.Cmd
		url, admin string
		client     *http.Client
	}
	start := func(settle string) (p program) {
		address := testserver.FreeAddress(t)
		p.url, p.admin = "http://"+address, testserver.FreeAddress(t)
		p.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
		p.cmd = caddyfile(t, fmt.Sprintf("{\n\tadmin %s\n}\n%s {\n\tshield {\n\t\tconcurrency 20000\n\t\tzone tokens {\n\t\t\tkey {header.Authorization}\n\t\t\tunit tokens\n\t\t\trate 10k/h\n\t\t\tburst 80000000\n\t\t\tcost 1000\n\t\t\t%s\n\t\t}\n\t}\n\treverse_proxy %s\n}\n",
			p.admin, p.url, settle, strings.TrimPrefix(model.URL, "http://")))
		await(t, p.cmd, serving)
		return p
	}
	// get reads a stream. began is told how long the first byte took.
	get := func(p program, path string, began func(time.Duration)) {
		at := time.Now()
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+path, strings.NewReader(`{"stream":true}`))
		r.Header.Set("Authorization", "Bearer one")
		resp, err := p.client.Do(r)
		if err != nil {
			t.Error(err)
			began(0)
			return
		}
		defer resp.Body.Close()
		sum := sha256.New()
		_, err = io.CopyN(sum, resp.Body, 1)
		began(time.Since(at))
		if err == nil {
			_, err = io.Copy(sum, resp.Body)
		}
		if want := sha256.Sum256([]byte(begin + rest)); err != nil || [sha256.Size]byte(sum.Sum(nil)) != want {
			t.Errorf("%s: the stream is another one: %v", resp.Status, err)
		}
	}
	// open opens streams, and returns how to end them, and the median of the time to the first byte.
	open := func(n int, programs ...program) (over func(), median time.Duration) {
		end = make(chan struct{})
		turns := make(chan struct{}, 32)
		var begun, done sync.WaitGroup
		times := make([]time.Duration, n)
		begun.Add(n)
		for i := range n {
			turns <- struct{}{}
			done.Go(func() {
				get(programs[i%len(programs)], "/long", func(took time.Duration) {
					times[i] = took
					begun.Done()
					<-turns
				})
			})
		}
		begun.Wait()
		return func() { close(end); done.Wait() }, middle(times)
	}
	memory := func(settle string) (heap float64) {
		p := start(settle)
		over, _ := open(50, p)
		over()
		before, rss := inUse(t, p.admin, p.cmd)
		over, median := open(streams, p)
		after, full := inUse(t, p.admin, p.cmd)
		over()
		heap = (after - before) / float64(streams)
		t.Logf("%d streams, %q: %.0f bytes each of heap and stacks, %.0f resident; median of the first bytes %v", streams, settle, heap, (full-rss)/float64(streams), median)
		used := 80_000_000 - left(t, p.admin, "Bearer one")
		cost := 1000
		if settle != "" {
			cost = 20
		}
		if most := (streams + 50) * cost; used > most || used < most*9/10 { // 3 tokens come back per second
			t.Errorf("%q: %d tokens are used; want %d", settle, used, most)
		}
		return heap
	}
	const settle = "settle usage"
	without, with := memory(""), memory(settle)
	if with-without > 5<<10 {
		t.Errorf("a stream takes %.0f bytes, and %.0f where its cost is read; want at most 5 KiB more", without, with)
	}

	plain, reads := start(""), start(settle)
	over, _ := open(streams, plain, reads)
	var took [2][]time.Duration
	for range 300 {
		for i, p := range []program{plain, reads} {
			get(p, "/short", func(d time.Duration) { took[i] = append(took[i], d) })
		}
	}
	over()
	a, b := middle(took[0]), middle(took[1])
	t.Logf("beside %d streams the median of the first byte takes %v, and %v where costs are read", streams, a, b)
	if b-a > time.Millisecond {
		t.Errorf("the first byte takes %v, and %v where costs are read; want at most 1 ms more", a, b)
	}
}

func middle(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// inUse returns how much of its heap and stacks a program uses, and how much memory it has.
func inUse(t *testing.T, admin string, cmd *exec.Cmd) (heap, resident float64) {
	t.Helper()
	var profile []byte
	for range 3 { // a sync.Pool is empty after two collections
		resp, err := http.Get("http://" + admin + "/debug/pprof/heap?gc=1&debug=1")
		if err != nil {
			t.Fatal(err)
		}
		profile, err = io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		t.Skip(err) // needs Linux
	}
	number := func(text []byte, pattern string) float64 {
		found := regexp.MustCompile(pattern).FindSubmatch(text)
		if found == nil {
			t.Fatalf("no %s in\n%s", pattern, text)
		}
		n, _ := strconv.ParseFloat(string(found[1]), 64)
		return n
	}
	return number(profile, `# HeapInuse = (\d+)`) + number(profile, `# Stack = (\d+)`), 1024 * number(status, `VmRSS:\s*(\d+)`)
}

// left returns how many tokens a client has in the only zone.
func left(t *testing.T, admin, client string) (tokens int) {
	t.Helper()
	var is struct {
		Shields []struct{ Zones []struct{ Tokens int } }
	}
	out := ask("explain", "--json", "--address", admin, client)
	if err := json.Unmarshal([]byte(out), &is); err != nil || len(is.Shields) != 1 || len(is.Shields[0].Zones) != 1 {
		t.Fatalf("%v in %s", err, out)
	}
	return is.Shields[0].Zones[0].Tokens
}
