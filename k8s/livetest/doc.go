// Package livetest tests everything against a real Kubernetes API server, on loopback. It consists of tests.
// They are skipped if the programs are not there that testbed/build makes, or fail if SHIELD_K8S_REQUIRED=1.
package livetest
