// Package deploy is what runs shield in a cluster: manifests, and their tests.
//
//   - base: shield-ingress, as a kustomize base; the source of truth
//   - components: what may be added: monitoring, admission policies, limits of the class
//   - overlays: namespaced is for some namespaces only, everything has all components
//   - standalone: shield without the ingress controller, as a Deployment or a sidecar
//   - render: prints all of them, and the Helm chart, which is in ../chart
//
// The tests look at what is rendered. Those that need helm or kubeconform, or a real
// API server, skip without them, unless SHIELD_K8S_REQUIRED is 1:
// ../testbed/build makes them.
package deploy
