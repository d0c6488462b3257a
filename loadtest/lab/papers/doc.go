// Command papers plays what papers and peers have published on overload, in virtual time, against shield's real Guard
// and a plain queue, in each paper's own units:
//
//	go -C loadtest/lab run ./papers              # prints all tables, in about a minute on two processors
//	go -C loadtest/lab run ./papers -only dagor  # prints one
//	go -C loadtest/lab run ./papers papers       # prints all, and fills those of papers/README.md
//
// There is one file for each paper. It says what the paper did and where, what of it is modelled, and what we could
// not check. Nothing in shield is set for a table but what its lines say. A figure that is not as it is wanted is
// marked as a miss; what is wanted is ours, or the paper's own figure. The test has bounds for figures that are not
// missed, so that it fails when they get worse.
//
// # Limitations
//
// Backends are package plant's, with a queue that is first come, first served, and without bound where nothing else is
// said. Clients do not mark their retries, nor say how long they wait. Decisions take no time, and there is no network
// where none is mentioned. The papers measured programs and machines; these tables say what the rules of admission do.
package main
