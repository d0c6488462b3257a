package policy

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
)

func perSecond(n float64, burst int) limiter.Config {
	return limiter.Config{Rate: n, Per: time.Second, Burst: burst}
}

// own returns annotations of shield's own: pairs of a name without prefix and a value.
func own(pairs ...string) map[string]string {
	m := map[string]string{"kubernetes.io/description": "not ours"}
	for i := 0; i < len(pairs); i += 2 {
		m[Prefix+pairs[i]] = pairs[i+1]
	}
	return m
}

func prefixes(list ...string) (p []netip.Prefix) {
	for _, s := range list {
		p = append(p, netip.MustParsePrefix(s))
	}
	return p
}

func TestParseIngress(t *testing.T) {
	class := Ingress{
		Zones: []Zone{{"rate", perSecond(10, 40)}}, PerClient: 4, Class: "sheddable",
		Allow: prefixes("10.0.0.0/8"), RetryAfterMax: 20 * time.Second, Observe: true,
	}
	for _, test := range []struct {
		name        string
		annotations map[string]string
		defaults    Ingress
		want        Ingress
	}{
		{"nothing", nil, Ingress{}, Ingress{}}, {"nothing of ours", own(), class, class},
		{"rate", own("rate", "50/s"), Ingress{}, Ingress{Zones: []Zone{{"rate", perSecond(50, 0)}}}}, {"rate per minute, burst", own("rate", "1.5/m", "burst", "3"), Ingress{},
			Ingress{Zones: []Zone{{"rate", limiter.Config{Rate: 1.5, Per: time.Minute, Burst: 3}}}}},
		{"all", own("rate", "3/h", "key", "{http.vars.client_ip} {http.request.header.X-Api-Key}", "concurrency", "7",
			"class", "critical", "allow-cidrs", "192.0.2.7, 10.1.2.3/8,2001:db8::/32", "retry-after-max", "59s", "mode", "observe", "ssl-redirect", "false"),
			Ingress{}, Ingress{Zones: []Zone{{"rate", limiter.Config{Rate: 3, Per: time.Hour}}},
				Key: "{http.vars.client_ip} {http.request.header.X-Api-Key}", PerClient: 7, Class: "critical",
				Allow: prefixes("10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32"), RetryAfterMax: 59 * time.Second, Observe: true}},
		{"key of concurrency alone", own("key", "{http.request.host}", "concurrency", "1000000"), Ingress{},
			Ingress{Key: "{http.request.host}", PerClient: 1_000_000}},
		{"a rate replaces the burst of the class", own("rate", "50/s"), Ingress{Zones: class.Zones}, Ingress{Zones: []Zone{{"rate", perSecond(50, 0)}}}},
		{"a burst keeps the rate of the class", own("burst", "5"), Ingress{Zones: class.Zones}, Ingress{Zones: []Zone{{"rate", perSecond(10, 5)}}}},
		{"off", own("rate", "off", "concurrency", "off", "class", "default", "allow-cidrs", "::1", "retry-after-max", "1s", "mode", "enforce"), class,
			Ingress{Class: "default", Allow: prefixes("::1/128"), RetryAfterMax: time.Second}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := ParseIngress(test.annotations, test.defaults)
			if err != nil || !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, %v; want %+v", got, err, test.want)
			}
			if class.Zones[0].Limit.Burst != 40 {
				t.Fatal("the defaults have been changed")
			}
		})
	}
}

func TestParseService(t *testing.T) {
	for _, test := range []struct {
		name        string
		annotations map[string]string
		want        Service
	}{
		{"nothing", nil, Service{}}, {"capacity", own("capacity", "500/s", "burst", "50"), Service{Capacity: perSecond(500, 50)}},
		{"all", own("capacity", "9000/m", "concurrency", "64", "endpoint-concurrency", "8", "queue", "32", "queue-timeout", "1m",
			"retry-after-max", "5s", "mode", "observe", "backend-protocol", "H2C"),
			Service{Capacity: limiter.Config{Rate: 9000, Per: time.Minute}, Concurrency: 64, EndpointConcurrency: 8, Queue: 32,
				QueueTimeout: time.Minute, RetryAfterMax: 5 * time.Second, Observe: true}},
		{"adaptive", own("concurrency", "adaptive", "queue-timeout", "50ms"), Service{Adaptive: true, QueueTimeout: 50 * time.Millisecond}},
		{"a queue of endpoints", own("endpoint-concurrency", "2", "queue-timeout", "100ms"), Service{EndpointConcurrency: 2, QueueTimeout: 100 * time.Millisecond}},
		{"no queue", own("concurrency", "adaptive", "queue", "off", "mode", "enforce"), Service{Adaptive: true, Queue: QueueOff}},
		{"queue for endpoints", own("endpoint-concurrency", "1", "queue", "10000"), Service{EndpointConcurrency: 1, Queue: 10_000}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := ParseService(test.annotations)
			if err != nil || !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, %v; want %+v", got, err, test.want)
			}
		})
	}
}

// Every error names the value, and what is wanted.
func TestErrors(t *testing.T) {
	ingress := func(pairs ...string) error {
		defaults := Ingress{PerClient: 3}
		p, err := ParseIngress(own(pairs...), defaults)
		if len(pairs) == 2 && !reflect.DeepEqual(p, defaults) {
			t.Errorf("%q: got %+v; want the defaults", pairs, p)
		}
		return err
	}
	service := func(pairs ...string) error {
		p, err := ParseService(own(pairs...))
		if len(pairs) == 2 && p != (Service{}) {
			t.Errorf("%q: got %+v; want no limits", pairs, p)
		}
		return err
	}
	const s = Prefix
	for _, test := range []struct {
		err  error
		want string
	}{
		{ingress("rate", "50"), s + `rate is "50"; use a number per s, m or h, like 50/s, or off`},
		{ingress("rate", "50/d"), s + `rate is "50/d"; use a number per s, m or h, like 50/s, or off`},
		{ingress("rate", "NaN/s"), s + `rate is "NaN/s"; use a number per s, m or h, like 50/s, or off`},
		{ingress("rate", "0/s"), s + `rate is "0/s": rate is 0 per 1s; use more than 0 and at most 1e9 per second`},
		{ingress("rate", "1/h", "burst", "9000"), s + `rate is "1/h": burst 9000 at a rate of 1 per 1h0m0s takes 3.24e+07 s to refill; the limit is 31622400 s (366 days)`},
		{ingress("rate", "1/s", "burst", "0"), s + `burst is "0"; use a whole number from 1 to 2147483647`},
		{ingress("burst", "5"), s + `burst has no effect without a rate; set ` + s + `rate, too, like 50/s`},
		{ingress("burst", "5", "rate", "off"), s + `burst has no effect while ` + s + `rate is off; remove one of them`},
		{ingress("concurrency", "adaptive"), s + `concurrency is "adaptive"; use a whole number from 1 to 1000000, or off`},
		{ingress("concurrency", "off", "key", "{http.request.host}"), s + `key has no effect without a client limit; set ` + s + `rate or ` + s + `concurrency, too`},
		{ingress("key", ""), s + `key is "": it is empty; use a placeholder like {http.request.header.X-Api-Key}, or remove the annotation to use the client's address`},
		{ingress("key", "{env.AWS_SECRET_ACCESS_KEY}"), s + `key is "{env.AWS_SECRET_ACCESS_KEY}": placeholder {env.AWS_SECRET_ACCESS_KEY} is not allowed in a key; use {http.vars.client_ip}, or one of Caddy's {http.request.*} that stays the same from request to request`},
		{ingress("key", "a}"), s + `key is "a}": unexpected }; put placeholders in braces`},
		{ingress("key", "X-Api-Key"), s + `key is "X-Api-Key": "X-Api-Key" has no placeholder; use one in braces, like {http.request.header.X-Api-Key}`},
		{ingress("class", "gold"), s + `class is "gold"; use critical, default or sheddable`},
		{ingress("retry-after-max", "60s"), s + `retry-after-max is "60s"; use whole seconds from 1s to 59s`},
		{ingress("allow-cidrs", "10.0.0.0/8,10.0.0.0/33"), s + `allow-cidrs is "10.0.0.0/8,10.0.0.0/33": "10.0.0.0/33" is not an address; use addresses or networks like 10.0.0.0/8, separated by commas`},
		{ingress("rtae", "5/s"), s + `rtae is not known; did you mean ` + s + `rate?`},
		{ingress("max-body-size", "1"), s + `max-body-size is not known; the nearest is ` + s + `body-size`},
		{ingress("capacity", "5/s"), s + `capacity belongs on a Service, not on an Ingress`},
		{service("rate", "5/s"), s + `rate belongs on an Ingress, not on a Service`},
		{service("concurrency", "off"), s + `concurrency is "off"; use a whole number from 1 to 1000000, or adaptive`},
		{service("queue", "10"), s + `queue has no effect without a concurrency limit; set ` + s + `concurrency or ` + s + `endpoint-concurrency, too`},
		{service("concurrency", "1", "queue", "-1"), s + `queue is "-1"; use a whole number from 1 to 10000, or off`},
		{service("concurrency", "1", "queue", "off", "queue-timeout", "1s"), s + `queue-timeout has no effect without a queue; set ` + s + `concurrency or ` + s + `endpoint-concurrency, but not ` + s + `queue to off`},
		{service("concurrency", "1", "queue", "5", "queue-timeout", "61s"), s + `queue-timeout is "61s"; use a duration above 0, up to 1m, like 50ms`},
		{ingress("modes", "x", "class", "x", "capacity", "x"), s + "capacity belongs on a Service, not on an Ingress\n" +
			s + "modes is not known; did you mean " + s + "mode?\n" + s + `class is "x"; use critical, default or sheddable`},
	} {
		if test.err == nil || test.err.Error() != test.want {
			t.Errorf("got  %v\nwant %s", test.err, test.want)
		}
	}
	if p, err := ParseDefaults(map[string]string{"rate": "5/s", "brust": "3"}); err == nil || err.Error() != "brust is not known; did you mean burst?" || p.Zones == nil {
		t.Errorf("of a class: got %+v, %v", p, err)
	}
	// An Event has little room.
	long := strings.Repeat("é", 100_000)
	if err := ingress("rate", long, long, long, "key", long, "allow-cidrs", long); len(err.Error()) > 1500 {
		t.Errorf("an error has %d bytes", len(err.Error()))
	}
	if err := ingress("allow-cidrs", strings.Repeat("::,", maxAllow)+"::"); err == nil || !strings.HasSuffix(err.Error(), "it has 10001 addresses; use at most 10000") {
		t.Errorf("too many addresses: got %v", err)
	}
}

func TestSSLRedirect(t *testing.T) {
	for _, test := range []struct {
		annotations map[string]string
		class, want Redirect
		ok          bool
	}{
		{nil, RedirectTLS, RedirectTLS, true}, {nil, RedirectNever, RedirectNever, true},
		{own("ssl-redirect", "true"), RedirectNever, RedirectTLS, true}, {own("ssl-redirect", "false"), RedirectTLS, RedirectNever, true},
		{own("ssl-redirect", "force"), RedirectTLS, RedirectAlways, true}, {own("ssl-redirect", "False"), RedirectAlways, RedirectAlways, false},
		{nginx("ssl-redirect", "false"), RedirectTLS, RedirectNever, true}, {nginx("ssl-redirect", "0"), RedirectTLS, RedirectNever, true},
		{nginx("ssl-redirect", "true"), RedirectNever, RedirectTLS, true}, {nginx("ssl-redirect", "no"), RedirectAlways, RedirectAlways, true},
		{nginx("ssl-redirect", "false", "force-ssl-redirect", "true"), RedirectTLS, RedirectAlways, true}, {nginx("force-ssl-redirect", "false"), RedirectTLS, RedirectTLS, true},
		{map[string]string{NginxPrefix + "force-ssl-redirect": "true", Prefix + "ssl-redirect": "false"}, RedirectTLS, RedirectNever, true},
	} {
		if is, err := SSLRedirect(test.annotations, true, test.class); is != test.want || (err == nil) != test.ok {
			t.Errorf("%v: got %v, %v", test.annotations, is, err)
		}
	}
	if is, _ := SSLRedirect(nginx("ssl-redirect", "false"), false, RedirectTLS); is != RedirectTLS {
		t.Errorf("ingress-nginx's is read without the flag: %v", is)
	}
	if is, err := DefaultSSLRedirect(map[string]string{"ssl-redirect": "false"}); is != RedirectNever || err != nil {
		t.Errorf("of the class: got %v, %v", is, err)
	}
}

func TestBackendProtocol(t *testing.T) {
	for _, test := range []struct {
		annotation, appProtocol, want string
	}{
		{"", "", "http"}, {"", "http", "http"}, {"", "kubernetes.io/ws", "http"}, {"", "mysql", "http"}, {"", "example.com/https", "http"},
		{"", "https", "https"}, {"", "HTTPS", "https"}, {"", "kubernetes.io/wss", "https"}, {"", "kubernetes.io/h2c", "h2c"}, {"", "grpc", "h2c"}, {"", "http2", "h2c"},
		{"HTTP", "https", "http"}, {"HTTPS", "", "https"}, {"H2C", "", "h2c"}, {"grpc", "", "h2c"},
	} {
		annotations := own()
		if test.annotation != "" {
			annotations = own("backend-protocol", test.annotation)
		}
		if got, err := BackendProtocol(annotations, test.appProtocol); got != test.want || err != nil {
			t.Errorf("%+v: got %s, %v", test, got, err)
		}
	}
	got, err := BackendProtocol(own("backend-protocol", "FCGI"), "https")
	if want := Prefix + `backend-protocol is "FCGI"; use HTTP, HTTPS, H2C or GRPC`; got != "https" || err == nil || err.Error() != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
}

func TestAllows(t *testing.T) {
	p, err := ParseIngress(own("allow-cidrs", "10.0.0.0/8,10.2.0.0/16,10.0.0.1,::ffff:192.0.2.0/120,2001:db8::/32,fe80::1,10.0.0.0/8"), Ingress{})
	if want := prefixes("10.0.0.0/8", "192.0.2.0/24", "2001:db8::/32", "fe80::1/128"); err != nil || !slices.Equal(p.Allow, want) {
		t.Fatalf("got %v, %v; want %v", p.Allow, err, want)
	}
	for address, want := range map[string]bool{
		"10.0.0.0": true, "10.255.255.255": true, "11.0.0.0": false, "9.255.255.255": false, "::ffff:10.1.1.1": true,
		"192.0.2.255": true, "192.0.3.0": false, "2001:db8:ffff::1": true, "2001:db9::": false, "fe80::1%eth0": true, "fe80::2": false, "::": false,
	} {
		if got := p.Allows(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: got %v; want %v", address, got, want)
		}
	}
	if p.Allows(netip.Addr{}) {
		t.Error("no address is allowed")
	}
}

// For any set of annotations with one made bad, the limits are those of the set without it; or with the
// default burst, if that is the bad one. So a mistake takes away nothing but what it was to say.
func TestMistakes(t *testing.T) {
	ingress := map[string]string{"rate": "50/s", "burst": "7", "concurrency": "4", "key": "{http.request.host}", "class": "critical", "allow-cidrs": "10.0.0.0/8", "retry-after-max": "9s", "mode": "observe"}
	service := map[string]string{"capacity": "500/s", "burst": "5", "concurrency": "9", "endpoint-concurrency": "4", "queue": "16", "queue-timeout": "50ms", "retry-after-max": "9s", "mode": "observe"}
	nginxs := map[string]string{"limit-rps": "5", "limit-rpm": "100", "limit-connections": "3", "limit-burst-multiplier": "2", "limit-allowlist": "10.0.0.0/8"}
	class := Ingress{Zones: []Zone{{"rate", perSecond(10, 40)}}, PerClient: 2, RetryAfterMax: time.Second}
	for _, kind := range []struct {
		name, prefix string
		all          map[string]string
		parse        func(map[string]string) (any, error)
	}{
		{"Ingress", Prefix, ingress, func(a map[string]string) (any, error) { return ParseIngress(a, Ingress{}) }},
		{"Ingress of a class", Prefix, ingress, func(a map[string]string) (any, error) { return ParseIngress(a, class) }},
		{"class", "", ingress, func(a map[string]string) (any, error) { return ParseDefaults(a) }},
		{"Service", Prefix, service, func(a map[string]string) (any, error) { return ParseService(a) }},
		{"ingress-nginx", NginxPrefix, nginxs, func(a map[string]string) (any, error) { p, _, err := ParseNginx(a, class); return p, err }},
	} {
		names := make([]string, 0, len(kind.all))
		for name := range kind.all {
			names = append(names, name)
		}
		for set := range 1 << len(names) {
			a := map[string]string{}
			for i, name := range names {
				if set>>i&1 == 1 {
					a[kind.prefix+name] = kind.all[name]
				}
			}
			for name := range a {
				if name == NginxPrefix+"limit-burst-multiplier" {
					continue // which counts as 5 if it is no number, as in ingress-nginx
				}
				bad, without := maps.Clone(a), maps.Clone(a)
				bad[name] = "nonsense"
				delete(without, name)
				if name == kind.prefix+"rate" || name == kind.prefix+"capacity" {
					delete(without, kind.prefix+"burst") // that of the bad rate, not of the class's
				}
				got, err := kind.parse(bad)
				want, _ := kind.parse(without)
				if err == nil || !reflect.DeepEqual(limitsOf(got), limitsOf(want)) {
					t.Fatalf("%s: %v: %v\ngot  %+v\nwant %+v", kind.name, bad, err, got, want)
				}
			}
		}
	}
	// A burst that does not go with a good rate leaves the rate.
	for _, burst := range []string{"0", "1000000000"} {
		p, err := ParseIngress(map[string]string{Prefix + "rate": "1/h", Prefix + "burst": burst}, class)
		s, err2 := ParseService(map[string]string{Prefix + "capacity": "1/h", Prefix + "burst": burst})
		if err == nil || err2 == nil || p.Zones[0].Limit.Rate != 1 || p.Zones[0].Limit.Burst != 0 || s.Capacity.Rate != 1 || s.Capacity.Burst != 0 {
			t.Errorf("burst %s: %+v, %+v", burst, p, s)
		}
	}
}

// limitsOf returns a policy without what means nothing without limits.
func limitsOf(p any) any {
	switch p := p.(type) {
	case Ingress:
		p.Key = ""
		return p
	case Service:
		p.Queue, p.QueueTimeout = 0, 0
		return p
	}
	return nil
}
