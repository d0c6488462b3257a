package shield_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
)

// A client may send two requests at once and then one every ten seconds. The
// third learns when to come back.
func ExampleGuard_Handler() {
	guard, err := shield.New(shield.Config{
		Zones: []shield.Zone{{
			Name:  "per_client",
			Limit: limiter.Config{Rate: 6, Per: time.Minute, Burst: 2},
			Key:   func(r *http.Request) string { return r.Header.Get("Api-Key") },
		}},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	handler := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "hello")
	}))

	// In a server this would be http.ListenAndServe(addr, handler).
	for range 3 {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Api-Key", "alice")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		body, _ := io.ReadAll(w.Body)
		fmt.Print(w.Code, " ", string(body))
		for _, name := range []string{"Retry-After", "RateLimit", "RateLimit-Policy"} {
			if value := w.Header().Get(name); value != "" {
				fmt.Println(name+":", value)
			}
		}
	}
	// Output:
	// 200 hello
	// 200 hello
	// 429 {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429,"detail":"This client has used up its quota. Come back when retry-after seconds have passed.","violated-policies":["per_client"],"retry-after":10}
	// Retry-After: 10
	// RateLimit: "per_client";r=0;t=10
	// RateLimit-Policy: "per_client";q=2;w=20
}

// Without HTTP: the caller says what time it is and gives back what it was
// given. The backend takes ten requests a second, and two at a time.
func ExampleGuard_Admit() {
	guard, err := shield.New(shield.Config{
		Capacity:    limiter.Config{Rate: 10, Burst: 3},
		Concurrency: 2,
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	admit := func(now time.Duration) shield.Decision {
		d := guard.Admit(now, shield.Request{})
		if d.Admit {
			fmt.Println(now, "admitted")
		} else {
			fmt.Printf("%v refused for %v: held back for %v, told %d s\n", now, d.Reason, d.Hold.Round(time.Millisecond), d.Hint.Seconds)
		}
		return d
	}

	first, second := admit(0), admit(0)
	admit(30 * time.Millisecond)
	first.Done(40*time.Millisecond, shield.Served)
	second.Done(40*time.Millisecond, shield.Served)

	third := admit(40 * time.Millisecond)
	third.Done(50*time.Millisecond, shield.Served)
	admit(60 * time.Millisecond)
	admit(60 * time.Millisecond)
	admit(100 * time.Millisecond)
	// Output:
	// 0s admitted
	// 0s admitted
	// 30ms refused for concurrency: held back for 0s, told 1 s
	// 40ms admitted
	// 60ms refused for capacity: held back for 72ms, told 1 s
	// 60ms refused for capacity: held back for 174ms, told 1 s
	// 100ms admitted
}
