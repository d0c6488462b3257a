package cluster

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/herdshield/shield/k8s/model"
)

func TestUntold(t *testing.T) {
	a, b, c := model.Problem{Reason: "A"}, model.Problem{Reason: "B"}, model.Problem{Reason: "C"}
	told := map[model.Problem]bool{a: true, b: true}
	if got, want := untold(told, []model.Problem{c, a, c}), []model.Problem{c}; !slices.Equal(got, want) {
		t.Errorf("untold are %v, want %v", got, want)
	}
	if len(told) != 1 || !told[a] {
		t.Errorf("told are %v, want those that are still there", told)
	}
}

func TestShorten(t *testing.T) {
	for _, s := range []string{"", "short", strings.Repeat("a", 1024), strings.Repeat("a", 1025), strings.Repeat("ä", 1000), "a" + strings.Repeat("ä", 1000), "bad \xff"} {
		got := shorten(s)
		if len(got) > 1024 || !utf8.ValidString(got) || len(s) <= 1024 && utf8.ValidString(s) && got != s {
			t.Errorf("%d bytes become %d: %q", len(s), len(got), got)
		}
	}
}

func TestSorted(t *testing.T) {
	ports := []networkingv1.IngressPortStatus{{Port: 80}}
	given := []Address{{IP: "2"}, {Hostname: "b"}, {IP: "1", Ports: ports}, {Hostname: "a"}, {IP: "1"}}
	want := []Address{{Hostname: "a"}, {Hostname: "b"}, {IP: "1"}, {IP: "2"}}
	same := func(a, b Address) bool { return compare(a, b) == 0 && b.Ports == nil }
	if got := sorted(given); !slices.EqualFunc(want, got, same) {
		t.Errorf("addresses are %v, want %v", got, want)
	}
	if given[0].IP != "2" || sorted(nil) != nil {
		t.Error("the argument was changed, or nothing is something")
	}
}

func TestTrim(t *testing.T) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			ManagedFields: []metav1.ManagedFieldsEntry{{}},
			Annotations:   map[string]string{corev1.LastAppliedConfigAnnotation: "x"},
		},
		Data: map[string][]byte{"tls.crt": nil, "tls.key": nil, "ca.crt": nil},
	}
	if _, err := trim(secret); err != nil || secret.ManagedFields != nil || secret.Annotations != nil || len(secret.Data) != 2 {
		t.Errorf("it is %+v, %v", secret, err)
	}
	tombstone := cache.DeletedFinalStateUnknown{Key: "k", Obj: secret}
	if got, err := trim(tombstone); got != tombstone || err != nil {
		t.Errorf("the tombstone is %v, %v", got, err)
	}
}

func TestConfigDefaults(t *testing.T) {
	c := Config{Namespaces: []string{"b", "a", "b"}, Pod: "p"}
	if err := c.setDefaults("home"); err != nil {
		t.Fatal(err)
	}
	if c.Namespace != "home" || c.Lease != "shield-ingress" || !slices.Equal(c.Namespaces, []string{"a", "b"}) || !strings.HasPrefix(c.Identity, "p_") {
		t.Errorf("it is %+v", c)
	}
	if err := (&Config{Namespaces: []string{"a", ""}}).setDefaults("home"); err == nil {
		t.Error("an empty name of a namespace is no error")
	}
}
