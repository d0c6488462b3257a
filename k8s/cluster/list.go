package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/herdshield/shield/k8s/translate"
)

// List returns the Ingresses and Services of today, without watching them. It is for programs that look once.
func (c *Cluster) List(ctx context.Context) (o translate.Objects, err error) {
	namespaces := c.config.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	for _, ns := range namespaces {
		var ingresses networkingv1.IngressList
		var services corev1.ServiceList
		if err := c.clients.networking.Get().Namespace(ns).Resource("ingresses").Do(ctx).Into(&ingresses); err != nil {
			return o, fmt.Errorf("reading Ingresses: %w", err)
		}
		if err := c.clients.core.Get().Namespace(ns).Resource("services").Do(ctx).Into(&services); err != nil {
			return o, fmt.Errorf("reading Services: %w", err)
		}
		for i := range ingresses.Items {
			o.Ingresses = append(o.Ingresses, &ingresses.Items[i])
		}
		for i := range services.Items {
			o.Services = append(o.Services, &services.Items[i])
		}
	}
	return o, nil
}
