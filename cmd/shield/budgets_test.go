package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"github.com/herdshield/shield"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdshield/shield/internal/fakellm"
	"github.com/herdshield/shield/share/redis/testserver"
)

// A key of 6,000 tokens per minute, 100 at once, has 20 workers that obey Retry-After-Ms. Each request costs 5 to 60 tokens, which is known when
// it ends: 25 to 300 ms later. It is the case of BerriAI/litellm#18730, 60 times as fast. In 17 s (LONG) they use what the bucket earns, within a tenth,
// at one process and at four that share the key. Deposits that are guessed too low or too high are shown beside it: they are a tenth of
// the mean, and the whole burst.
func TestWorkersUseWhatTheBucketEarns(t *testing.T) {
	t.Parallel()
	deposits := []string{"auto", "3", "100"}
	// start returns the addresses of so many processes for each deposit.
	start := func(t *testing.T, processes int, store string) (at map[string][]string) {
		model := httptest.NewServer(&fakellm.Server{PerToken: 5 * time.Millisecond})
		t.Cleanup(model.Close)
		at = map[string][]string{}
		var admins []string
		for range processes {
			admin := testserver.FreeAddress(t)
			config := "{\n\tadmin " + admin + "\n" + store + "}\n"
			for _, deposit := range deposits {
				address := testserver.FreeAddress(t)
				config += fmt.Sprintf("http://%s {\n\tshield {\n\t\tname %s\n\t\tzone tokens%[2]s {\n\t\t\tkey {header.Authorization}\n\t\t\tunit tokens\n\t\t\trate 6k/m\n\t\t\tburst 100\n\t\t\tcost %[2]s\n\t\t\tsettle usage\n\t\t}\n\t}\n\treverse_proxy %s\n}\n", address, deposit, strings.TrimPrefix(model.URL, "http://"))
				at[deposit] = append(at[deposit], address)
			}
			await(t, caddyfile(t, config), serving)
			admins = append(admins, admin)
		}
		for _, admin := range admins {
			if store != "" {
				awaitStore(t, admin, processes)
			}
		}
		return at
	}
	test := func(t *testing.T, processes int, store string) {
		at := start(t, processes, store)
		long, slack := 6*time.Second, 0.2
		if os.Getenv("LONG") != "" {
			long, slack = 17*time.Second, 0.1
		}
		var all sync.WaitGroup
		for _, deposit := range deposits {
			all.Go(func() {
				used, requests, rejected := work(t, at[deposit], 20, 3*time.Second, long) // a new store begins with empty buckets
				part := used / (100 * long.Seconds())
				t.Logf("%d processes, cost %s: %.0f tokens in %v, %.1f%% of what the bucket earns, by %d requests; %d rejections", processes, deposit, used, long, 100*part, requests, rejected)
				if deposit == "auto" && (part < 1-slack || part > 1+slack) {
					t.Errorf("%.0f tokens in %v; want %v, within %.0f%%", used, long, 100*long.Seconds(), 100*slack)
				}
			})
		}
		all.Wait()
	}
	t.Run("alone", func(t *testing.T) {
		t.Parallel()
		test(t, 1, "")
	})
	t.Run("four", func(t *testing.T) {
		t.Parallel()
		store := testserver.Start(t, testserver.Programs(t)[0])
		test(t, 4, "\tshield {\n\t\tstore redis "+store.Addr+" {\n\t\t\tsecret 0123456789abcdef\n\t\t}\n\t}\n")
	})
}

// work has workers ask a model behind some addresses in turn, and wait as they are told. It returns what they have used in a time after a
// warm-up. A request has used its tokens one by one from its beginning to its end. Clients hang up when the JSON is whole, before they have
// seen that nothing follows.
func work(t *testing.T, addresses []string, workers int, warm, long time.Duration) (used float64, requests, rejected int) {
	from := time.Now().Add(warm)
	until := from.Add(long)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}}
	defer client.CloseIdleConnections()
	var next atomic.Int64
	var mu sync.Mutex
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for began := time.Now(); began.Before(until); began = time.Now() {
				address := addresses[next.Add(1)%int64(len(addresses))]
				r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/v1/chat/completions",
					strings.NewReader(`{"max_tokens":56,"messages":[{"content":"Hey!"}]}`))
				r.Header.Set("Authorization", "Bearer one")
				resp, err := client.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				var answer struct {
					Usage struct {
						Total float64 `json:"total_tokens"`
					}
				}
				err = json.NewDecoder(resp.Body).Decode(&answer)
				resp.Body.Close()
				ended := time.Now()
				wait, _ := strconv.Atoi(resp.Header.Get("Retry-After-Ms"))
				served := resp.StatusCode == http.StatusOK
				if err != nil || served != (wait == 0) || !served && resp.StatusCode != http.StatusTooManyRequests {
					t.Errorf("%s, to wait %d ms: %v", resp.Status, wait, err)
					return
				}
				mu.Lock()
				if inside := min(ended.Sub(from), long) - max(0, began.Sub(from)); inside > 0 && served {
					used += answer.Usage.Total * inside.Seconds() / ended.Sub(began).Seconds()
					requests++
				} else if inside > 0 {
					rejected++
				}
				mu.Unlock()
				time.Sleep(min(time.Duration(wait)*time.Millisecond, time.Until(until)))
			}
		})
	}
	all.Wait()
	return used, requests, rejected
}

// A server with a zone of tokens and a state file is killed under load. When it is back it has charged what each key has used, with the
// debts, but for the last ten seconds at most. A request that was in flight is charged its deposit, once: its end was never seen.
func TestBudgetsAfterAKill(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	arrived := make(chan struct{}, 1)
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Hold") != "" {
			arrived <- struct{}{}
			<-hold
		}
		fmt.Fprintf(w, `{"usage":{"total_tokens":%s}}`, r.Header.Get("X-Use"))
	}))
	t.Cleanup(model.Close)
	t.Cleanup(func() { close(hold) })
	path := filepath.Join(t.TempDir(), "state")
	start := func() (cmd *exec.Cmd, url, admin string) {
		address, admin := testserver.FreeAddress(t), testserver.FreeAddress(t)
		cmd = caddyfile(t, fmt.Sprintf("{\n\tadmin %s\n\tshield {\n\t\tstate {\n\t\t\tfile %s\n\t\t}\n\t}\n}\nhttp://%s {\n\tshield {\n\t\tzone tokens {\n\t\t\tkey {header.Authorization}\n\t\t\tunit tokens\n\t\t\trate 1/h\n\t\t\tburst 1000\n\t\t\tcost 50\n\t\t\tsettle usage\n\t\t}\n\t}\n\treverse_proxy %s\n}\n",
			admin, path, address, strings.TrimPrefix(model.URL, "http://")))
		await(t, cmd, serving)
		return cmd, "http://" + address, admin
	}
	cmd, url, _ := start()
	use := func(key string, tokens int, hold string) (status int) {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
		r.Header.Set("Authorization", key)
		r.Header.Set("X-Use", strconv.Itoa(tokens))
		if hold != "" {
			r.Header.Set("X-Hold", hold)
		}
		return statusOf(r)
	}
	keys := []struct {
		name string
		used []int
		left int
	}{
		{"little", []int{1, 2, 3}, 994},
		{"more than the deposit", []int{300, 400}, 300},
		{"a debt", []int{900, 700}, -600},
		{"the greatest debt", []int{1_000_000}, -1000},
	}
	for _, k := range keys {
		for _, n := range k.used {
			if status := use(k.name, n, ""); status != http.StatusOK {
				t.Fatalf("%s got %d", k.name, status)
			}
		}
	}
	var flying sync.WaitGroup
	flying.Go(func() { use("in flight", 700, "1") })
	<-arrived
	quiet := time.Now()
	stop := make(chan struct{})
	for n := range 4 {
		flying.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					use(fmt.Sprint("client ", n, i), 70, "")
				}
			}
		})
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if b, err := os.ReadFile(path); err == nil {
			if is, err := shield.ReadSaved(bytes.NewReader(b)); err == nil && is.At.After(quiet.Add(time.Second)) {
				break
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("it is not written")
		}
	}
	late := use("late", 70, "")
	end(t, cmd, os.Kill)
	close(stop)
	flying.Wait()
	_, url, admin := start()
	for _, k := range keys {
		if got := left(t, admin, k.name); got != k.left {
			t.Errorf("%s: %d tokens are left after the kill; want %d", k.name, got, k.left)
		}
	}
	if got := left(t, admin, "in flight"); got != 950 {
		t.Errorf("a request was in flight, and %d tokens are left of 1000; want 950", got)
	}
	if status := use("a debt", 1, ""); status != http.StatusTooManyRequests {
		t.Errorf("with a debt it got %d", status)
	}
	t.Logf("a request of the last second got %d, and its key has %d tokens", late, left(t, admin, "late"))
	if status := use("in flight", 70, ""); status != http.StatusOK { // again, as its client got nothing
		t.Errorf("again it got %d", status)
	}
	if got := left(t, admin, "in flight"); got != 880 {
		t.Errorf("it was asked again for 70 tokens, and %d are left; want 880", got)
	}
}
