// Package lab is the laboratory: a module that holds what no product command
// imports. Its packages make the tables and pictures of the docs, check the claims
// that the docs make, and compare shield with other programs. Those programs
// are required here and nowhere else.
//
//	bash loadtest/lab/run
package lab
