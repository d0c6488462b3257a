package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
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
				want := regexp.MustCompile(fmt.Sprintf(`SHARING .* REPLICAS .*\n(.* +%d +.*\n?){%d}`, processes, len(deposits)))
				awaitStore(t, admin, want.String(), want.MatchString)
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
					strings.NewReader(fmt.Sprintf(`{"max_tokens":%d,"messages":[{"content":"Hey!"}]}`, 1+rand.IntN(56))))
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
