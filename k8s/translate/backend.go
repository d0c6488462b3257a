package translate

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
)

// A portKey is one port of a Service. An Ingress may say what it speaks.
type portKey struct {
	service key
	port    string // as in Backend.Port
	spoken  string // as policy.NginxProtocol has it
}

// backend returns where an Ingress sends requests. If it cannot, it adds a Problem and returns nil.
func (r *run) backend(in *ingress, b *networkingv1.IngressBackend) *model.Backend {
	ref := in.origin.Ref
	if b.Service == nil {
		what := "nothing"
		if b.Resource != nil {
			what = "the " + b.Resource.Kind + " " + b.Resource.Name
		}
		r.problems.add(ref, ReasonBackendUnsupported, "a backend is %s; use a Service. Requests to it get 503", what)
		return nil
	}
	k := key{in.Namespace, b.Service.Name}
	s := r.services[k]
	if s == nil {
		r.problems.add(ref, ReasonServiceNotFound, "Service %s does not exist; requests to it get 503", k)
		return nil
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		r.problems.add(ref, ReasonExternalName, "Service %s is of type ExternalName, which is not supported; requests to it get 503", k)
		return nil
	}
	port := findPort(s, b.Service.Port)
	if port == nil {
		r.problems.add(ref, ReasonPortNotFound, "Service %s has no TCP port %s; requests to it get 503", k, portText(b.Service.Port))
		return nil
	}

	at := portKey{service: k, port: port.Name}
	if at.port == "" {
		at.port = strconv.Itoa(int(port.Port))
	}
	if r.opts.NginxAnnotations && s.Annotations[policy.Prefix+"backend-protocol"] == "" {
		at.spoken = policy.NginxProtocol(in.Annotations)
	}
	if known := r.backends[at]; known != nil {
		return known
	}
	backend := &model.Backend{Service: r.service(s, k), Port: at.port}
	if backend.Protocol = r.protocol(s, port, at.port); at.spoken != "" {
		backend.Protocol = protocols[at.spoken]
	}
	backend.Endpoints = r.endpoints(s, k, port)
	r.backends[at] = backend
	return backend
}

// findPort finds a port by its name, or by its number if the name is "".
func findPort(s *corev1.Service, want networkingv1.ServiceBackendPort) *corev1.ServicePort {
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if !isTCP(p.Protocol) {
			continue
		}
		if want.Name != "" && p.Name == want.Name || want.Name == "" && want.Number != 0 && p.Port == want.Number {
			return p
		}
	}
	return nil
}

func isTCP(p corev1.Protocol) bool { return p == "" || p == corev1.ProtocolTCP }

func portText(p networkingv1.ServiceBackendPort) string {
	if p.Name != "" {
		return strconv.Quote(p.Name)
	}
	return strconv.Itoa(int(p.Number))
}

// servicePolicy is what one Service's annotations ask for, and the protocols of its ports.
type servicePolicy struct {
	policy    policy.Service            // the last good one
	good      bool                      // there was one; else policy is what is good of this one
	protocols map[string]model.Protocol // by Backend.Port; good ones
}

// service returns the model.Service that all Backends of one Service share.
func (r *run) service(s *corev1.Service, k key) *model.Service {
	if known := r.used[k]; known != nil {
		return known
	}
	id := identityOf(s)
	p := servicePolicy{protocols: make(map[string]model.Protocol)}
	var err error
	if p.policy, err = policy.ParseService(s.Annotations); err != nil {
		r.problems.add(refTo("Service", s), ReasonPolicyInvalid, "%s", joinErrors(err))
		if last := r.last.services[id]; last.good {
			p.policy, err = last.policy, nil
		}
	}
	p.good = err == nil
	r.next.services[id] = p
	known := &model.Service{Ref: refTo("Service", s), Policy: p.policy}
	r.used[k] = known
	return known
}

// protocol returns the protocol of a port. r.service must have been called for its Service.
func (r *run) protocol(s *corev1.Service, port *corev1.ServicePort, name string) model.Protocol {
	id := identityOf(s)
	text, err := policy.BackendProtocol(s.Annotations, value(port.AppProtocol))
	protocol := protocols[text] // with an error, that of the port's appProtocol
	if err != nil {
		r.problems.add(refTo("Service", s), ReasonPolicyInvalid, "%s", joinErrors(err))
		good, seen := r.last.services[id].protocols[name]
		if !seen {
			return protocol
		}
		protocol = good
	}
	r.next.services[id].protocols[name] = protocol
	return protocol
}

// protocols has the values of policy.BackendProtocol.
var protocols = map[string]model.Protocol{"http": model.HTTP, "h2c": model.H2C, "https": model.HTTPS}

func slicesByService(all []*discoveryv1.EndpointSlice) map[key][]*discoveryv1.EndpointSlice {
	index := make(map[key][]*discoveryv1.EndpointSlice, len(all))
	for _, s := range all {
		if s == nil {
			continue
		}
		if name := s.Labels[discoveryv1.LabelServiceName]; name != "" {
			k := key{s.Namespace, name}
			index[k] = append(index[k], s)
		}
	}
	return index
}

// endpoints merges all slices of a Service. Each slice has, under the name of the Service's
// port, the number that its endpoints listen on.
func (r *run) endpoints(s *corev1.Service, k key, port *corev1.ServicePort) []model.Endpoint {
	n := 0
	for _, slice := range r.slices[k] {
		n += len(slice.Endpoints)
	}
	v4, v6 := make([]model.Endpoint, 0, n), []model.Endpoint(nil)
	for _, slice := range r.slices[k] {
		number := slicePort(slice, port)
		if number == 0 || slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for i := range slice.Endpoints {
			ep := &slice.Endpoints[i]
			ip, ok := address(ep)
			if !ok {
				continue
			}
			e := model.Endpoint{
				Addr:  netip.AddrPortFrom(ip, number),
				State: stateOf(ep.Conditions, s.Spec.PublishNotReadyAddresses),
			}
			if ip.Is4() {
				v4 = append(v4, e)
			} else {
				v6 = append(v6, e)
			}
		}
	}
	first, second := v4, v6
	if r.opts.PreferIPv6 {
		first, second = v6, v4
	}
	if !anyServes(first) && (anyServes(second) || len(first) == 0) {
		first = second
	}
	return merged(first)
}

// merged sorts endpoints and removes duplicates: while the control plane moves one between
// slices it is in both. The more usable of the two counts.
func merged(list []model.Endpoint) []model.Endpoint {
	slices.SortFunc(list, func(a, b model.Endpoint) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.State, b.State))
	})
	return slices.CompactFunc(list, func(a, b model.Endpoint) bool { return a.Addr == b.Addr })
}

func anyServes(list []model.Endpoint) bool {
	return slices.ContainsFunc(list, func(e model.Endpoint) bool { return e.State != model.NotReady })
}

// slicePort returns the number of the Service's port in a slice, or 0.
func slicePort(slice *discoveryv1.EndpointSlice, port *corev1.ServicePort) uint16 {
	for i := range slice.Ports {
		p := &slice.Ports[i]
		if value(p.Name) != port.Name || !isTCP(value(p.Protocol)) {
			continue
		}
		number := int32(port.Port)
		switch target := port.TargetPort.IntValue(); {
		case p.Port != nil:
			number = *p.Port
		case target != 0: // the slice leaves the port open
			number = int32(target)
		}
		if number > 0 && number <= 65535 {
			return uint16(number)
		}
	}
	return 0
}

// address returns the first address: others would be the same endpoint again.
func address(ep *discoveryv1.Endpoint) (netip.Addr, bool) {
	if len(ep.Addresses) == 0 {
		return netip.Addr{}, false
	}
	ip, err := netip.ParseAddr(ep.Addresses[0])
	return ip.Unmap(), err == nil
}

// stateOf returns the state that conditions mean. Where they are nil, ready is true,
// serving equals ready, and terminating is false.
func stateOf(c discoveryv1.EndpointConditions, publishNotReady bool) model.EndpointState {
	ready := publishNotReady || c.Ready == nil || *c.Ready
	serving := ready
	if c.Serving != nil {
		serving = *c.Serving
	}
	switch terminating := value(c.Terminating); {
	case terminating && (serving || ready): // ready: the Service publishes endpoints that are not ready
		return model.Draining
	case !terminating && ready:
		return model.Ready
	default:
		return model.NotReady
	}
}

// replicas returns the replicas behind shield's own Service: all in its slices, ready or
// not, since each of them may be serving now.
func (r *run) replicas() []string {
	var names, v4, v6 []string
	for _, slice := range r.slices[splitKey(r.opts.Self)] {
		for i := range slice.Endpoints {
			ep := &slice.Endpoints[i]
			if ref := ep.TargetRef; ref != nil && ref.Name != "" {
				names = append(names, ref.Name)
			} else if ip, ok := address(ep); ok && ip.Is4() {
				v4 = append(v4, ip.String())
			} else if ok {
				v6 = append(v6, ip.String())
			}
		}
	}
	if len(v4) == 0 { // else they are the same replicas again
		v4 = v6
	}
	names = append(names, v4...)
	slices.Sort(names)
	return slices.Compact(names)
}
