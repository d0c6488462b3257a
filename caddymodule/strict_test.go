package caddymodule

import (
	"bufio"
	"bytes"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/pushback"
)

// FuzzStrict checks that what parseStrict accepts is for net/http one request without a body, with
// the same parts, of which a Guard and its answers know no more than its rule does.
func FuzzStrict(f *testing.F) {
	rnd := rand.New(rand.NewPCG(2, 2))
	for range 300 {
		f.Add([]byte(pieces(rnd)))
	}
	for _, head := range smuggled {
		f.Add([]byte(head))
	}
	guard := shield.Must(shield.New(shield.Config{}, nil))
	const next = "GET /next HTTP/1.1\r\nHost: next\r\n\r\n"
	f.Fuzz(func(t *testing.T, b []byte) {
		s, ok := parseStrict(b)
		if !ok {
			return
		}
		in := bufio.NewReader(bytes.NewReader(append(bytes.Clone(b), next...)))
		r, err := http.ReadRequest(in)
		if err != nil {
			t.Fatalf("net/http refuses %q: %v", b, err)
		}
		if after, err := http.ReadRequest(in); err != nil || after.Host != "next" || in.Buffered() != 0 {
			t.Fatalf("after %q comes %v, %v", b, after, err)
		}
		if !isAllOf(b, r) || r.Close || r.Body != http.NoBody || !repeatable(r, new(shield.Request), new(shield.Decision)) {
			t.Fatalf("%q is no request that is remembered: %+v", b, r)
		}
		if r.Method != string(s.method) || r.URL.Path != string(s.path) || r.Host != string(s.host) ||
			strings.Join(r.Header["User-Agent"], ",") != string(s.agent) || strings.Join(r.Header["Accept"], ",") != string(s.accept) ||
			strings.Join(r.Header["Sec-Fetch-Mode"], ",") != string(s.fetch) {
			t.Fatalf("%q is %+v, and not %q", b, r, s)
		}
		want := shield.Request{Agent: string(s.agent)}
		if got := guard.Describe(r); got.Agent != want.Agent || got.Retry || got.Precise || got.Ticket != "" {
			t.Fatalf("%q is %+v to the Guard, and not %+v", b, got, want)
		}
		if shield.Deadline(r, time.Hour) != 0 || r.Header[classField] != nil || strings.HasPrefix(r.URL.Path, "/.well-known/") {
			t.Fatalf("%q has a deadline or a class, or is for Caddy", b)
		}
		plain, _ := http.NewRequest(r.Method, "/", nil)
		for _, name := range []string{"Accept", "Sec-Fetch-Mode"} {
			if v := r.Header[name]; v != nil {
				plain.Header[name] = v
			}
		}
		var got, alike sample
		got.header, alike.header = http.Header{}, http.Header{}
		refusal := pushback.Refusal{Policy: -1, Hint: samples[0]}
		guard.Answers().Write(&got, r, refusal, time.Time{})
		guard.Answers().Write(&alike, plain, refusal, time.Time{})
		if !bytes.Equal(got.body, alike.body) || !equalHeaders(got.header, alike.header) {
			t.Fatalf("%q is answered %v %q, its shape %v %q", b, got.header, got.body, alike.header, alike.body)
		}
	})
}

func equalHeaders(a, b http.Header) bool {
	var x, y bytes.Buffer
	_, _ = a.Write(&x), b.Write(&y)
	return x.String() == y.String()
}

// smuggled are heads that servers have been known to disagree about, and some that they do not.
var smuggled = []string{
	"GET / HTTP/1.1\r\nHost: h\r\n\r\n", "HEAD /a/b?c=%20d HTTP/1.1\r\nHost: h:80\r\nUser-Agent: x\r\nAccept: text/html\r\nConnection: keep-alive\r\n\r\n",
	"GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n", "GET /%2e HTTP/1.1\r\nHost: h\r\n\r\n", "GET //h/a HTTP/1.1\r\nHost: h\r\n\r\n", "GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n",
	"GET / HTTP/1.1\r\nHost:h \r\n\r\n", "GET / HTTP/1.1\r\nHost: h\t\r\n\r\n", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: h\r\nhost: i\r\n\r\n", "GET / HTTP/1.1\r\nHost:\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\n Host: h\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: h\r\nX: y\r\n z\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\nX\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\n: y\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: h\r\nX : y\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\nX_Y: z\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: h\r\nContent-Length : 5\r\n\r\nhello", "GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: h\r\nX: \rContent-Length: 5\r\n\r\nhello", "GET / HTTP/1.1\r\nHost: h\r\nX: y\nContent-Length: 5\r\n\r\nhello",
	"GET / HTTP/1.1\nHost: h\n\n", "GET / HTTP/1.1\r\r\nHost: h\r\n\r\n", "GET  / HTTP/1.1\r\nHost: h\r\n\r\n", "GET /  HTTP/1.1\r\nHost: h\r\n\r\n", "GET\t/ HTTP/1.1\r\nHost: h\r\n\r\n",
	"GET / HTTP/1.1 HTTP/1.1\r\nHost: h\r\n\r\n", "GET /? HTTP/1.1 HTTP/1.1\r\nHost: h\r\n\r\n", "GET / HTTP/1.0\r\nHost: h\r\n\r\n", "GET / HTTP/1.2\r\nHost: h\r\n\r\n", "get / HTTP/1.1\r\nHost: h\r\n\r\n",
	"GET http://i/ HTTP/1.1\r\nHost: h\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "OPTIONS /a HTTP/1.1\r\nHost: h\r\n\r\n", "\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: h\r\n\r\nx", "GET / HTTP/1.1\r\nHost: h\r\n\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, close\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\nConnection: Accept\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: h\r\nAccept:\r\nAccept: text/html\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\nSec-Fetch-Mode:\r\nAccept: text/html\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: h\r\nCookie: a=b; shield_retry=1\r\n\r\n", "GET /.well-known/acme-challenge/x HTTP/1.1\r\nHost: h\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\nX: \x00\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\nX: \xff\r\n\r\n",
	"\x00GET\nh\n\n\n", "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\nUser-Agent: x \r\n\r\n",
}

// TestStrictKnowsHeaders looks for headers in what decides and answers. A rule must know
// their values, or leave requests that have them to net/http.
func TestStrictKnowsHeaders(t *testing.T) {
	files, err := filepath.Glob("../pushback/*.go")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, "../handler.go", "../deadline.go", "class.go", "handler.go", "outcome.go", "refuse.go")
	read := regexp.MustCompile(`(?:\bh\[|Header\[|Header\.Get\(|Header\.Values\(|Field += )"([A-Z][\w-]+)"|^\t\{"([A-Z][\w-]+)", \d\}`)
	found := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(string(source), "\n") {
			for _, match := range read.FindAllStringSubmatch(line, -1) {
				name := match[1] + match[2]
				if name == "Set-Cookie" || name == "Ratelimit" || name == "Backoff" {
					continue // of responses
				}
				value := map[bool]string{false: "x", true: "shield_retry=x"}[name == "Cookie"]
				_, ok := parseStrict([]byte("GET / HTTP/1.1\r\nHost: h\r\n" + name + ": " + value + "\r\n\r\n"))
				known := name == "Accept" || name == "Sec-Fetch-Mode" || name == "User-Agent"
				if found++; ok != known {
					t.Errorf("%s: a request with %s is accepted: %v, want %v", file, name, ok, known)
				}
			}
		}
	}
	if found < 15 {
		t.Errorf("%d headers were found, want all of them", found)
	}
}

func TestStrictTakesNoMemory(t *testing.T) {
	head := []byte("GET /a/b?c=d HTTP/1.1\r\nHost: example.com\r\nUser-Agent: test\r\nAccept: */*\r\nX-Request-Id: 123\r\nConnection: keep-alive\r\n\r\n")
	if n := testing.AllocsPerRun(100, func() {
		var buf [512]byte
		s, ok := parseStrict(head)
		if shape := s.appendShape(buf[:0]); !ok || len(shape) < 10 {
			t.Errorf("%q has no shape", head)
		}
	}); n != 0 {
		t.Errorf("it allocates %v times", n)
	}
}

func BenchmarkStrict(b *testing.B) {
	head := []byte("GET /a/b?c=d HTTP/1.1\r\nHost: example.com\r\nUser-Agent: test\r\nAccept: */*\r\nX-Request-Id: 123\r\nConnection: keep-alive\r\n\r\n")
	b.ReportAllocs()
	for b.Loop() {
		parseStrict(head)
	}
}
