package shieldclient_test

import (
	"fmt"
	"log"
	"net/http"
	"strings"
	"time"

	"github.com/herdshield/shield/clients/go/shieldclient"
)

// docs/guides/write-a-client.md has this.
func Example() {
	client := &http.Client{Transport: &shieldclient.Transport{Total: 2 * time.Minute}}
	resp, err := client.Post("http://localhost:8080/orders", "application/json", strings.NewReader(`{"item": 7}`))
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode) // 429 or 503 if the client has given up
}
