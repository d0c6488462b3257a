package accesslog_test

import (
	"fmt"
	"strings"

	"github.com/herdshield/shield/loadtest/accesslog"
)

// A client is told to come in 5 seconds, and does.
func ExampleRead() {
	const log = `
{"level":"error","ts":1768478400.25,"logger":"http.log.access.log0","msg":"handled request","request":{"client_ip":"192.0.2.1","method":"GET","host":"shop.example","uri":"/"},"duration":0.0002,"status":503,"resp_headers":{"Retry-After":["5"]}}
{"level":"info","ts":1768478405.31,"logger":"http.log.access.log0","msg":"handled request","request":{"client_ip":"192.0.2.1","method":"GET","host":"shop.example","uri":"/"},"duration":0.042,"status":200,"resp_headers":{}}
`
	e, err := accesslog.Read(strings.NewReader(log))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(e.Requests, "requests,", e.Retries, "retry")
	fmt.Println("served in", e.Service)
	for _, share := range e.Population() {
		fmt.Println(share.Weight, share.Policy)
	}
	// Output:
	// 2 requests, 1 retry
	// served in 42ms
	// 1 exact
}
