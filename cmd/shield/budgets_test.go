package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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
// it ends: 25 to 300 ms later. It is the case of BerriAI/litellm#18730, 60 times as fast. In 20 s they use what the bucket earns, within a tenth,
// at one process and at four that share the key. Deposits that are guessed too low or too high are shown beside it.
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
		for _, deposit := range deposits {
			t.Run("cost "+deposit, func(t *testing.T) {
				t.Parallel()
				used, requests, rejected := work(t, at[deposit], 20, 2*time.Second, 20*time.Second)
				part := used / (100 * 20)
				t.Logf("%d processes, cost %s: %v tokens in 20 s, %.1f %% of what the bucket earns, by %d requests; %d rejections", processes, deposit, used, 100*part, requests, rejected)
				if deposit == "auto" && (part < 0.9 || part > 1.1) {
					t.Errorf("%v tokens in 20 s; want 1800 to 2200", used)
				}
			})
		}
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

// work has workers ask a model behind some addresses in turn, and waits as it is told. It returns what they have used in a time after a warm-up.
func work(t *testing.T, addresses []string, workers int, warm, long time.Duration) (used float64, requests, rejected int) {
	ctx, cancel := context.WithTimeout(t.Context(), warm+long)
	defer cancel()
	began := time.Now()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}}
	defer client.CloseIdleConnections()
	var next atomic.Int64
	var mu sync.Mutex
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for ctx.Err() == nil {
				address := addresses[next.Add(1)%int64(len(addresses))]
				r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v1/chat/completions",
					strings.NewReader(`{"max_tokens":56,"messages":[{"content":"Hey!"}]}`))
				r.Header.Set("Authorization", "Bearer one")
				resp, err := client.Do(r)
				if err != nil {
					continue // it is over, or the next says why
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				wait, _ := strconv.Atoi(resp.Header.Get("Retry-After-Ms"))
				var answer struct {
					Usage struct {
						Total float64 `json:"total_tokens"`
					}
				}
				counts := err == nil && time.Since(began) >= warm
				mu.Lock()
				switch {
				case resp.StatusCode == http.StatusOK && counts:
					err = json.Unmarshal(body, &answer)
					used += answer.Usage.Total
					requests++
				case resp.StatusCode == http.StatusTooManyRequests && counts:
					rejected++
				}
				mu.Unlock()
				if odd := resp.StatusCode != http.StatusOK && (resp.StatusCode != http.StatusTooManyRequests || wait == 0); odd || err != nil && ctx.Err() == nil {
					t.Errorf("%s, to wait %d ms: %v", resp.Status, wait, err)
					return
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(wait) * time.Millisecond):
				}
			}
		})
	}
	all.Wait()
	return used, requests, rejected
}
