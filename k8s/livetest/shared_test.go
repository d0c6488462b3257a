package livetest

import (
	"bufio"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/herdshield/shield/k8s/testbed/must"
	"github.com/herdshield/shield/share/redis/testserver"
)

// Two replicas with a store admit together what one does: of a Service's capacity, and of a
// client's quota. Without the store they still do, each with its part, until it is back.
func TestShared(t *testing.T) {
	s, ns := shop(t, "shared")
	store, machine := testserver.Start(t, testserver.Programs(t)[0]), testserver.Watch(t)
	store.Do("CONFIG", "SET", "requirepass", "horse")
	store.Password = "horse"
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "store"},
		Data:       map[string][]byte{"secret": []byte("correct horse battery staple"), "password": []byte(store.Password)},
	}
	s.Create(t, secret)
	s.Get(t, secret)
	// As the kubelet sets the environment of the chart's pods: see TestValues in deploy.
	t.Setenv("SHIELD_SECRET", string(secret.Data["secret"]))
	t.Setenv("SHIELD_STORE_PASSWORD", string(secret.Data["password"]))

	const rate, burst, asking = 20, 20, 3 * time.Second
	capacity := s.Serve(t, service(ns, "capacity", annotation+"capacity", fmt.Sprint(rate, "/s"), annotation+"burst", fmt.Sprint(burst)), "capacity", nil)
	s.Create(t, webIngress(ns, "capacity", "capacity.example.com", "/", "capacity"))
	quota := s.Serve(t, service(ns, "quota"), "quota", nil)
	limited := webIngress(ns, "quota", "quota.example.com", "/", "quota")
	limited.Annotations = pairs([]string{annotation + "rate", fmt.Sprint(rate, "/s"), annotation + "burst", fmt.Sprint(burst)})
	s.Create(t, limited)
	s.Replicas(t, ns, "one", "two")
	var both []*Process
	for _, name := range []string{"one", "two"} {
		both = append(both, begin(t, s.AdminKubeconfig(t), name, "--service", ns+"/own", "--replicas=shared", "--store=redis://"+store.Addr))
	}
	for _, p := range both {
		if strings.Contains(p.logs(), "horse") {
			t.Error("the logs have the password or the secret")
		}
	}

	is := func(up, alone float64) func() bool {
		return func() bool {
			for _, p := range both {
				for _, m := range []struct {
					name string
					want float64
				}{
					{"caddy_shield_store_up", up}, {"caddy_shield_store_alone", alone}, {"caddy_shield_store_zone_alone", alone},
					{"caddy_shield_store_replicas", 2}, {"caddy_shield_store_zone_replicas", 2},
				} {
					if values := p.metrics(m.name, ns); len(values) != 1 || values[0] != m.want {
						return false
					}
				}
			}
			return true
		}
	}
	for _, phase := range []struct {
		name      string
		do        func()
		up, alone float64
		least     float64 // of what one admits
	}{
		{"together", func() {}, 1, 0, .8},
		{"without the store", store.Kill, 0, 1, .7},
	} {
		phase.do()
		eventually(t, 20*time.Second, phase.name+", says each", is(phase.up, phase.alone))
		time.Sleep(2 * time.Second) // a new store begins with empty buckets
		var hosts sync.WaitGroup
		machine.Lap()
		for host, pod := range map[string]*Pod{"capacity.example.com": capacity, "quota.example.com": quota} {
			hosts.Go(func() {
				began, before := time.Now(), pod.Served.Load()
				ask(both, host, asking)
				got, most := float64(pod.Served.Load()-before), burst+rate*time.Since(began).Seconds()+float64(len(both))
				least := phase.least * (burst + rate*asking.Seconds()) // rejections take longer, and no more are asked
				prompt := machine.Prompt()
				if !prompt {
					most += 0.1 * got // decisions that were made late are of a time that has passed
				}
				t.Logf("%s: %s admits %.0f of %.1f to %.1f; the machine is prompt: %v", phase.name, host, got, least, most, prompt)
				if got > most || prompt && got < least {
					t.Errorf("%s: %s admits %.0f; want as many as one replica, %.1f to %.1f", phase.name, host, got, least, most)
				}
			})
		}
		hosts.Wait()
	}
	store.Password = ""
	store.Restart()
	store.Do("CONFIG", "SET", "requirepass", "horse")
	eventually(t, 20*time.Second, "the store is back, says each", is(1, 0))
}

// ask asks all processes in turn for a host, 100 times per second, until the time is over
// and all have answered.
func ask(all []*Process, host string, lasts time.Duration) {
	every := time.NewTicker(10 * time.Millisecond)
	defer every.Stop()
	end := time.After(lasts)
	var asked sync.WaitGroup
	defer asked.Wait()
	for i := 0; ; i++ {
		select {
		case <-end:
			return
		case <-every.C:
			asked.Go(func() { all[i%len(all)].Get(host, "/") })
		}
	}
}

// metrics returns the values of a metric: of all that has no labels, or is in a namespace.
// Objects of other tests may still be there.
func (p *Process) metrics(name, namespace string) (values []float64) {
	resp := must.Get(http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", p.Status)))(p.t)
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		metric, value, _ := strings.Cut(lines.Text(), " ")
		metric, labels, labelled := strings.Cut(metric, "{")
		if metric == name && (!labelled || strings.Contains(labels, "/"+namespace+"/")) {
			f := must.Get(strconv.ParseFloat(value, 64))(p.t)
			values = append(values, f)
		}
	}
	return values
}
