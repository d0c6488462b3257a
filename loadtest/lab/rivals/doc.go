// Command rivals puts what people use today, and shield, in front of the same
// backend in turn, sends the same herd over loopback sockets, and prints what came
// of it.
//
//	bash loadtest/lab/rivals/run            # all of it: under 6 minutes
//	bash loadtest/lab/rivals/run -quick     # a small version: under 90 s
//	bash loadtest/lab/rivals/run -markdown  # as a Markdown table
//
// Everything is the real thing: nginx and HAProxy as Debian packages them,
// caddy-ratelimit and shield as modules of one Caddy, httprate in a chi router. The
// one exception is named as our own. The clients and the backend are those of
// loadtest/live. configs.go has each config, with the reason for each line.
//
// A run fails if shield does not serve all of its herd. The others' figures are
// measured and not judged. It also fails if a limiter lets more through than its
// config says, or rejects no request: then it is not the limiter that was measured.
package main
