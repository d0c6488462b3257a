// Command frontdoor measures what a request costs the server that it comes to: shield, Caddy
// alone, nginx and HAProxy, each in a process of its own, before the same clients and backend.
//
//	bash loadtest/lab/endtoend/frontdoor/run                     # all of it: some 20 minutes
//	bash loadtest/lab/endtoend/frontdoor/run -only HTTP/2        # rows with this in their name
//	bash loadtest/lab/endtoend/frontdoor/run -rounds 3 -time 1s  # less exactly
//
// The server has one core for itself; clients and backend share the other. The price is the
// processor time of all its threads, by the responses in the same time. Clients check the status
// of each response.
//
// rows.go has the rows, fronts.go the configs.
package main
