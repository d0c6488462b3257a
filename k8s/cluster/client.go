package cluster

import (
	"errors"
	"net/http"

	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
)

// The rate limit of writes. Ours: a moderate load for an API server; 1000 statuses take 20 s.
const (
	writesPerSecond = 50
	writesBurst     = 100
)

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, networkingv1.AddToScheme, discoveryv1.AddToScheme, coordinationv1.AddToScheme,
	} {
		utilruntime.Must(add(s))
	}
	return s
}()

// clients are the REST clients of the API groups. They share one connection.
type clients struct {
	core, networking, discovery, coordination rest.Interface

	// statuses and events are for writing, with a rate limit.
	statuses, events rest.Interface

	contact contact
}

// connect makes the clients for a kubeconfig, and returns the namespace of its credentials.
func connect(kubeconfig string, log *zap.Logger) (*clients, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil)
	config, err := credentials(kubeconfig, loader)
	if err != nil {
		return nil, "", err
	}
	namespace, _, err := loader.Namespace() // in a pod, that of its ServiceAccount
	if err != nil {
		return nil, "", err
	}

	c := &clients{contact: contact{log: log}}
	config.UserAgent = "shield-ingress"
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.QPS = -1 // reflectors and the election pace themselves, and must not wait for statuses
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &observedTransport{next, &c.contact} })
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, "", err
	}
	client := func(gv schema.GroupVersion, limit flowcontrol.RateLimiter) rest.Interface {
		config := rest.CopyConfig(config)
		config.GroupVersion, config.APIPath, config.RateLimiter = &gv, "/apis", limit
		if gv.Group == "" {
			config.APIPath = "/api"
		}
		var client rest.Interface
		if client, err = rest.RESTClientForConfigAndClient(config, transport); err != nil {
			return nil
		}
		return client
	}
	for _, m := range []struct {
		client  *rest.Interface
		gv      schema.GroupVersion
		limited bool
	}{
		{&c.core, corev1.SchemeGroupVersion, false},
		{&c.networking, networkingv1.SchemeGroupVersion, false},
		{&c.discovery, discoveryv1.SchemeGroupVersion, false},
		{&c.coordination, coordinationv1.SchemeGroupVersion, false},
		{&c.statuses, networkingv1.SchemeGroupVersion, true},
		{&c.events, corev1.SchemeGroupVersion, true},
	} {
		var limit flowcontrol.RateLimiter
		if m.limited {
			limit = flowcontrol.NewTokenBucketRateLimiter(writesPerSecond, writesBurst)
		}
		if *m.client = client(m.gv, limit); err != nil {
			return nil, "", err
		}
	}
	return c, namespace, nil
}

func credentials(kubeconfig string, loader clientcmd.ClientConfig) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if !errors.Is(err, rest.ErrNotInCluster) {
			return config, err
		}
	}
	return loader.ClientConfig()
}
