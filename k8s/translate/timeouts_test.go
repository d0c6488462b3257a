package translate

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/herdshield/shield/k8s/model"
)

// An Ingress's own timeouts come before those of its class, and those before the
// controller's. A value that is wrong is left out, with a Problem.
func TestTimeouts(t *testing.T) {
	flags := model.Timeouts{Request: 5 * time.Minute, Response: time.Minute}
	for _, tt := range []struct {
		class, ingress string
		want           model.Timeouts
		problems       int
	}{
		{"", "", flags, 0}, {"", "response-timeout=1m30s backend-timeout=10s", model.Timeouts{Request: 5 * time.Minute, Backend: 10 * time.Second, Response: 90 * time.Second}, 0},
		{"", "request-timeout=off response-timeout=0s", model.Timeouts{}, 0}, {"response-timeout=2s request-timeout=off", "", model.Timeouts{Response: 2 * time.Second}, 0},
		{"response-timeout=2s", "response-timeout=off request-timeout=1ms", model.Timeouts{Request: time.Millisecond}, 0}, {"response-timeout=-2s", "", flags, 1},
		{"", "response-timeout=60 backend-timeout=2s", model.Timeouts{Request: 5 * time.Minute, Backend: 2 * time.Second, Response: time.Minute}, 1},
		{"response-timeout=2s", "response-timeout=25h request-timeout=1us", model.Timeouts{Request: 5 * time.Minute, Response: 2 * time.Second}, 1},
		{"", "nginx/proxy-read-timeout=3600", model.Timeouts{Request: 5 * time.Minute, Response: time.Hour}, 0},
		{"", "nginx/proxy-read-timeout=90s nginx/proxy-send-timeout=1", model.Timeouts{Request: 5 * time.Minute, Response: 90 * time.Second}, 1}, // the second is told of
		{"", "nginx/proxy-read-timeout=3600 response-timeout=5s", model.Timeouts{Request: 5 * time.Minute, Response: 5 * time.Second}, 0},
		{"", "nginx/proxy-read-timeout=long", flags, 1},
	} {
		_, o := decode(t, classWithParameters)
		o.Ingresses[0].Annotations = words(tt.ingress)
		c := &corev1.ConfigMap{Data: map[string]string{}}
		c.Namespace, c.Name = "shield-ingress", "defaults"
		for k, v := range words(tt.class) {
			c.Data[strings.TrimPrefix(k, "shield.herdshield.io/")] = v
		}
		o.ConfigMaps = append(o.ConfigMaps, c)
		m := New(Options{NginxAnnotations: true, Timeouts: flags}).Translate(o)
		if m.Default.Timeouts != tt.want || len(m.Problems) != tt.problems {
			t.Errorf("class %q, Ingress %q: %+v, problems %v; want %+v and %d", tt.class, tt.ingress, m.Default.Timeouts, m.Problems, tt.want, tt.problems)
		}
	}
}
