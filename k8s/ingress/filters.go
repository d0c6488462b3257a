package ingress

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
)

// filter changes a request for the backend, as the filters of its target ask. The limits have
// seen what the client sent.
func (t *trip) filter(r *http.Request) {
	if t.url != nil {
		r.URL = t.url
	}
}

// The default sizes of bodies. The first is ingress-nginx's (its proxy-body-size), whose
// backends have never seen more. The other is what the free plan of a large network of proxies,
// Cloudflare's, lets through.
const (
	nginxBodySize   = 1 << 20
	defaultBodySize = 100 << 20
)

// tooLarge is why the answer is 413.
const tooLarge = "the request body is too large"

// bodySize returns how many bytes the body may have; negative: any number.
func (t *trip) bodySize(config *App) int64 {
	switch {
	case t.filters != nil && t.filters.BodySize != 0:
		return t.filters.BodySize
	case t.passage.protocol == model.H2C: // it may be a conversation
		return policy.NoBodySize
	case config.BodySize != 0:
		return config.BodySize
	case config.NginxAnnotations:
		return nginxBodySize
	}
	return defaultBodySize
}

// A sizedBody ends with an error when it is too large. Shields must not see that: for them a
// body that ends early is a client that has left.
type sizedBody struct {
	io.ReadCloser
	left int64
	over atomic.Bool
}

var errTooLarge = errors.New(tooLarge)

// Read implements io.Reader.
func (b *sizedBody) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 { // one more byte is proof
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if int64(n) > b.left {
		b.over.Store(true)
		n, err = int(b.left), errTooLarge
	}
	b.left -= int64(n)
	return n, err
}

// isOver reports whether the body has been too large; of nil it has not.
func (b *sizedBody) isOver() bool { return b != nil && b.over.Load() }
