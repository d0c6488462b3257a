package clients_test

import (
	"fmt"

	"github.com/herdshield/shield/loadtest/clients"
)

// A mix of client libraries meets a server that says nothing but 503.
func ExampleParse() {
	mix, err := clients.Parse("curl:70,aws-sdk-go:20,fixed@5s*2:10")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, share := range mix {
		fmt.Printf("%v, weight %v:", share.Policy, share.Weight)
		for attempt := 1; ; attempt++ {
			wait, again := share.Policy.Next(clients.Refused{Attempt: attempt, Status: 503, U: 0.5})
			if !again {
				break
			}
			fmt.Print(" ", wait)
		}
		fmt.Println()
	}
	_, err = clients.Parse("crul")
	fmt.Println(err)
	// Output:
	// curl, weight 70: 1s 2s 4s
	// aws-sdk-go, weight 20: 1s 2s
	// every 5s, 2 attempts, weight 10: 5s
	// "crul": policy "crul" is unknown; want one near it: curl
}
