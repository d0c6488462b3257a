// Package replicas has nothing but tests: real processes of the program, a real store and
// real clients over sockets, counted at the backend. The limits hold, on a machine however busy:
//
//	go -C loadtest/lab test ./replicas # 10 s
//
// README.md has tables of the same in virtual time.
//
// In any window the backend gets at most one request for each replica beyond burst + rate * time.
// A request counts there when its replica passed it on: a busy machine brings requests
// together that were sent in turn.
package replicas
