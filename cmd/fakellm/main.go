// Command fakellm serves what looks like the APIs of OpenAI and Anthropic: see package fakellm.
//
//	go run ./cmd/fakellm --listen localhost:8000
package main

import (
	"flag"
	"log"
	"net/http"
	"time"

	"github.com/herdshield/shield/internal/fakellm"
)

func main() {
	listen := flag.String("listen", "localhost:8000", "the `address` to serve at")
	perToken := flag.Duration("per-token", 5*time.Millisecond, "the `time` that a token takes")
	flag.Parse()
	log.Printf("a fake language model is at http://%s; Ctrl-C ends it", *listen)
	log.Fatal(http.ListenAndServe(*listen, &fakellm.Server{PerToken: *perToken}))
}
