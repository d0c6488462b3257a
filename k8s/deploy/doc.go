// Package deploy has the manifests that run shield in a cluster, and their tests.
//
//   - base: shield-ingress, as a kustomize base; the source of truth
//   - components: options: monitoring, admission policies, defaults of the class
//   - overlays: namespaced is for some namespaces only, everything has all components
//   - standalone: shield without the ingress controller, as a Deployment or a sidecar
//   - render: prints all of them, and the Helm chart, which is in ../chart
//
// The tests check the rendered objects. Those that need helm or a real API server are
// skipped without them, unless SHIELD_K8S_REQUIRED is 1: ../testbed/build builds both.
package deploy
