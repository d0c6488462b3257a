// Package realclients checks that programs which others have written come back
// when shield tells them to, and are then admitted: curl, go-retryablehttp,
// Kubernetes' client-go, grpc-go, and from npm got and ky.
//
// Everything is in the tests; README.md says how to run them.
package realclients
