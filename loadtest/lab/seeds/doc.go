// Package seeds plays what has been written about how clients back off, to see
// whether it is so: loadtest/lab/seeds/README.md.
//
//	Play         an outage: all fail at once, and the server stays down
//	Outage.Peaks where the retries rise again
//	Contend      AWS's simulation: many clients write one row
//	Climb        how long a crowd takes that only one can be served of at a time
//
// The clients are the Policies of package clients that the simulator plays, and
// shield is the real Guard. The same arguments give the same figures, always. Command
// draw makes the pictures and tables of the page, which have what is claimed beside
// what is played. A test has them compared with those of the code:
//
//	go -C loadtest/lab run ./seeds/draw seeds
package seeds
