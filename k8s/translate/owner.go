package translate

import (
	"fmt"
	"strings"
)

// names has the first Ingress that names each host.
type names struct {
	hosts     map[string]*ingress
	wildcards map[string]*ingress // by what follows "*."
}

func newNames(n int) names {
	return names{hosts: make(map[string]*ingress, n), wildcards: make(map[string]*ingress)}
}

// add records that an Ingress names a host, unless one has done so before.
func (n names) add(host string, in *ingress) {
	at := n.hosts
	if parent, ok := strings.CutPrefix(host, "*."); ok {
		at, host = n.wildcards, parent
	}
	if host != "" && at[host] == nil {
		at[host] = in
	}
}

// first returns the first Ingress that names a host, or a wildcard for it, and the name
// that it uses. nil: there is none.
func (n names) first(host string) (in *ingress, as string) {
	if parent, ok := strings.CutPrefix(host, "*."); ok {
		return n.wildcards[parent], host
	}
	in, as = n.hosts[host], host
	if _, parent, _ := strings.Cut(host, "."); parent != "" {
		if wild := n.wildcards[parent]; wild != nil && (in == nil || wild.age < in.age) {
			return wild, "*." + parent
		}
	}
	return in, as
}

// readNames records which Ingresses name which hosts. Ingresses must come oldest first.
func (r *run) readNames(ours []*ingress) {
	r.named, r.implied, r.ruled = newNames(len(ours)), newNames(0), make(map[string]bool, len(ours))
	for _, in := range ours {
		for _, host := range in.hosts {
			r.ruled[host] = true
			r.named.add(host, in)
		}
		for i := range in.tls {
			for _, host := range in.tls[i].Hosts {
				r.named.add(readHost(host), in)
			}
		}
	}
}

// owner returns the Ingress whose namespace a host belongs to, and the name that it uses.
// nil: the host belongs to no namespace. A name in a spec has precedence over one in a
// certificate only, because RBAC and admission see the spec alone.
func (r *run) owner(host string) (in *ingress, as string) {
	if in, as = r.named.first(host); in == nil {
		in, as = r.implied.first(host)
	}
	return in, as
}

// rejected reports whether an Ingress may not have rules for a host, and adds a Problem if so.
func (r *run) rejected(in *ingress, host string) bool {
	if r.opts.ShareHosts {
		return false
	}
	owner, as := r.owner(host)
	if owner == nil || owner.Namespace == in.Namespace {
		return false
	}
	r.problems.add(in.origin.Ref, ReasonHostTaken, "%s; rules for it are ignored here", ownerText(host, owner, as))
	return true
}

func ownerText(host string, owner *ingress, as string) string {
	if as == host {
		as = "it"
	}
	return fmt.Sprintf("host %s belongs to namespace %s, whose Ingress %s named %s first", host, owner.Namespace, owner.origin, as)
}
