package cluster

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// A feed keeps a copy of the objects of one kind in one namespace, or in all.
type feed struct {
	store      cache.Store
	controller cache.Controller

	client              rest.Interface
	resource, namespace string
	selector            string // of fields

	mu    sync.Mutex // guards open
	open  int        // watches: 1 when all is well
	ended atomic.Int64
}

// forEver is the end of a feed whose watch is open.
const forEver = math.MaxInt64

// feeds makes the feeds of one kind in some namespaces; "" means all.
func (c *Cluster) feeds(client rest.Interface, resource string, object, list runtime.Object, namespaces []string) []*feed {
	feeds := make([]*feed, len(namespaces))
	for i, namespace := range namespaces {
		f := &feed{client: client, resource: resource, namespace: namespace}
		if resource == "secrets" {
			f.selector = "type=" + string(corev1.SecretTypeTLS)
		}
		logger := logger(c.log, c.clients.contact.down)
		f.store, f.controller = cache.NewInformerWithOptions(cache.InformerOptions{
			Logger: &logger,
			ListerWatcher: &cache.ListWatch{
				ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
					list := list.DeepCopyObject()
					return list, insist(ctx, func() error { return f.request(&options).Do(ctx).Into(list) })
				},
				WatchFuncWithContext: f.watch,
			},
			ObjectType: object,
			Transform:  trim,
			Handler: cache.ResourceEventHandlerFuncs{
				AddFunc: func(any) { signal(c.changed) },
				UpdateFunc: func(before, after any) {
					if version(before) != version(after) { // else it has only been listed again
						signal(c.changed)
					}
				},
				DeleteFunc: func(any) { signal(c.changed) },
			},
		})
		feeds[i] = f
	}
	return feeds
}

func (f *feed) request(options *metav1.ListOptions) *rest.Request {
	options.FieldSelector = f.selector
	return f.client.Get().Namespace(f.namespace).Resource(f.resource).VersionedParams(options, metav1.ParameterCodec)
}

func (f *feed) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	var w watch.Interface
	if err := insist(ctx, func() (err error) {
		w, err = f.request(&options).Watch(ctx)
		return err
	}); err != nil {
		return nil, err
	}
	f.count(1)
	return &watched{Interface: w, stop: sync.OnceFunc(func() {
		f.count(-1)
		w.Stop()
	})}, nil
}

// The waits between requests to an API server that cannot be reached. Ours: client-go's grow to a minute,
// separately for each kind of objects, so that long after the API server is back some kinds would be missing.
const (
	minRetryWait = 250 * time.Millisecond
	maxRetryWait = 2 * time.Second
)

// insist calls ask until the API server answers, even with a rejection, or until ctx ends.
func insist(ctx context.Context, ask func() error) error {
	for wait := minRetryWait; ; wait = min(2*wait, maxRetryWait) {
		err := ask()
		var status apierrors.APIStatus
		var network net.Error
		if err == nil || errors.As(err, &status) && status.Status().Code < 500 || !errors.As(err, &status) && !errors.As(err, &network) {
			return err // a response, or one that cannot be parsed: client-go logs it
		}
		select {
		case <-time.After(wait/2 + rand.N(wait)):
		case <-ctx.Done():
			return err
		}
	}
}

func (f *feed) count(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open += n
	if f.open > 0 {
		f.ended.Store(forEver)
	} else {
		f.ended.Store(int64(now()))
	}
}

// until returns the time since epoch until which the copies are certainly up to date, if the connection works.
func (f *feed) until() int64 { return f.ended.Load() }

// A watched is a watch that runs a function when it ends. The reflector stops every watch
// that it has begun, even one that has ended.
type watched struct {
	watch.Interface
	stop func()
}

// Stop implements watch.Interface.
func (w *watched) Stop() { w.stop() }

// list returns the objects in the stores of feeds.
func list[T any](feeds []*feed) []T {
	var objects []T
	for i, f := range feeds {
		stored := f.store.List()
		if i == 0 && len(feeds) == 1 {
			objects = make([]T, 0, len(stored))
		}
		for _, object := range stored {
			objects = append(objects, object.(T))
		}
	}
	return objects
}

// find returns one object, nil if there is none.
func find[T any](feeds []*feed, namespace, name string) (object T) {
	for _, f := range feeds {
		if f.namespace != "" && f.namespace != namespace {
			continue
		}
		if stored, ok, _ := f.store.GetByKey(cache.NewObjectName(namespace, name).String()); ok {
			return stored.(T)
		}
	}
	return object
}

func version(object any) string { return object.(metav1.Object).GetResourceVersion() }

// trim removes unused fields from a new copy: often more than half of it.
func trim(object any) (any, error) {
	o, ok := object.(metav1.Object)
	if !ok {
		return object, nil // the tombstone of one that was trimmed
	}
	o.SetManagedFields(nil)
	if annotations := o.GetAnnotations(); annotations[corev1.LastAppliedConfigAnnotation] != "" {
		delete(annotations, corev1.LastAppliedConfigAnnotation)
		if len(annotations) == 0 {
			o.SetAnnotations(nil)
		}
	}
	if secret, ok := object.(*corev1.Secret); ok {
		for key := range secret.Data {
			if key != corev1.TLSCertKey && key != corev1.TLSPrivateKeyKey {
				delete(secret.Data, key)
			}
		}
	}
	return object, nil
}
