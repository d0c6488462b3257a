package ingress

import (
	"errors"
	"fmt"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/k8s/policy"
)

// With a store replicas share the quotas of Ingresses, and the capacity and concurrency of
// Services. The rest is divided: what one client may have in flight, and Services whose
// endpoints have limits of their own, because their permits are dealt out to replicas. Local
// policies are neither.

func shareable(p policy.Service) bool { return p.EndpointConcurrency == 0 }

// ofClients returns this replica's part of the limits of single clients: all of those that
// are shared.
func (b *builder) ofClients(p policy.Ingress) policy.Ingress {
	part := p.Divide(divisionTime(b.now), b.division)
	if b.sharing != nil {
		part.Zones = p.Zones
	}
	return part
}

// ofBackend is the same for a backend.
func (b *builder) ofBackend(p policy.Service) policy.Service {
	if b.sharing != nil && shareable(p) {
		return p
	}
	return p.Divide(divisionTime(b.now), b.division)
}

// known returns how limits are shared, with the replicas that are known: so many take their
// parts of them while there is no store.
func (b *builder) known() *caddymodule.Sharing {
	if b.sharing == nil || len(b.replicas) == 0 {
		return b.sharing
	}
	known := *b.sharing
	known.Replicas = min(len(b.replicas), shield.MaxReplicas)
	return &known
}

// share sets in c what replicas share.
func (p protection) share(c *shield.Config) {
	if p.sharing == nil {
		return
	}
	c.Secret, c.Replicas = p.sharing.Secret, p.sharing.Replicas
	c.Shared = p.limitsService() && shareable(p.service)
	for i := range c.Zones {
		c.Zones[i].Shared = !p.origin.Local
	}
}

// The environment variables that have what flags must not show, because they can be read in
// the pod.
const (
	secretVariable   = "SHIELD_SECRET"
	passwordVariable = "SHIELD_STORE_PASSWORD"
)

// ParseStore returns the store of --store. Its secret, and its password if it has one, are
// placeholders of environment variables, of which env tells the values.
func ParseStore(url string, env func(string) string) (*caddymodule.Store, error) {
	store, err := caddymodule.ParseStoreURL(url)
	switch {
	case err != nil:
		return nil, fmt.Errorf("--%w", err)
	case store.Password != "":
		return nil, fmt.Errorf("--store has a password, which anyone can read in the pod; put it in the environment variable %s, from a Secret", passwordVariable)
	case env(secretVariable) == "":
		return nil, errors.New("the environment variable " + secretVariable + " is not set; set it to at least 16 bytes from a Secret, the same for all replicas")
	}
	store.Secret = "{env." + secretVariable + "}"
	if env(passwordVariable) != "" {
		store.Password = "{env." + passwordVariable + "}"
	}
	return &store, nil
}
