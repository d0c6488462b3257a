// Package realclients checks that programs which others have written come back
// when shield tells them to, and are then admitted: curl, go-retryablehttp,
// Kubernetes' client-go, grpc-go, and from npm got and ky.
//
// It is a module of its own, so that those clients are required here and nowhere
// else. Everything is in the tests; README.md says how to run them.
package realclients
