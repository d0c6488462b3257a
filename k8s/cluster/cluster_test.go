package cluster

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/testbed/must"
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

// TestInTurn: a namespace whose Problem changes as fast as Events are made gets every second
// Event, wherever it is in the alphabet, and all others get theirs, too.
func TestInTurn(t *testing.T) {
	problem := func(namespace, message string) model.Problem {
		return model.Problem{Object: model.Ref{Namespace: namespace, Name: "in"}, Message: message}
	}
	names := func(problems []model.Problem) (all string) {
		for _, p := range problems {
			all += p.Object.Namespace + p.Message + " "
		}
		return all
	}
	several := []model.Problem{problem("", "1"), problem("a", "1"), problem("a", "2"), problem("a", "3"), problem("b", "1"), problem("c", "1"), problem("c", "2")}
	for last, want := range map[string]string{
		"": "a1 b1 c1 1 a2 c2 a3 ", "a": "b1 c1 1 a1 c2 a2 a3 ", "b": "c1 1 a1 b1 c2 a2 a3 ", "z": "1 a1 b1 c1 a2 c2 a3 ",
	} {
		if got := names(inTurn(several, last)); got != want {
			t.Errorf("after %q: %q, want %q", last, got, want)
		}
	}

	for _, evil := range []string{"a-evil", "m-evil", "z-evil"} {
		told, turn, quiet := map[model.Problem]bool{}, "", 0
		for i := range 20 {
			problems := []model.Problem{problem(evil, strings.Repeat("x", i))} // another one each time
			for _, namespace := range strings.Split("b c d e f g h i j", " ") {
				problems = append(problems, problem(namespace, ""))
			}
			slices.SortFunc(problems, func(a, b model.Problem) int { return strings.Compare(a.Object.Namespace, b.Object.Namespace) })
			next := inTurn(untold(told, problems), turn)[0]
			told[next], turn = true, next.Object.Namespace
			if turn != evil {
				quiet++
			}
		}
		if quiet != 9 {
			t.Errorf("%s: %d of 9 others are told after 20 Events", evil, quiet)
		}
	}
}

// TestStatusOf: our Ingresses have our addresses; former ones keep the entries of others unchanged.
func TestStatusOf(t *testing.T) {
	ports := []networkingv1.IngressPortStatus{{Port: 443}}
	now, before, other := Address{IP: "192.0.2.1"}, Address{Hostname: "old.example.com"}, Address{IP: "198.51.100.1", Ports: ports}
	another := Address{IP: "10.0.0.1"}
	w := &wanted{addresses: []Address{now}, past: []Address{before}}
	for _, test := range []struct {
		name      string
		is        []Address
		mine      bool
		want      []Address
		different bool
	}{
		{"ours without", nil, true, []Address{now}, true}, {"ours", []Address{now}, true, []Address{now}, false},
		{"ours with another's", []Address{other, now}, true, []Address{now}, true},
		{"not ours", []Address{other, another}, false, []Address{other, another}, false}, {"not ours without", nil, false, nil, false},
		{"was ours", []Address{now}, false, nil, true}, {"was ours, as it was before", []Address{before}, false, nil, true},
		{"was ours, and another's", []Address{other, before, now, another}, false, []Address{other, another}, true},
	} {
		got, different := w.status(test.is, test.mine)
		if !reflect.DeepEqual(got, test.want) || different != test.different {
			t.Errorf("%s: %v, %v; want %v, %v", test.name, got, different, test.want, test.different)
		}
	}
}

// TestRemember: formerly published addresses are removed from the status of former
// Ingresses, even when nothing is published.
func TestRemember(t *testing.T) {
	s := newStatus(nil)
	publish := func(all ...string) {
		var addresses []Address
		for _, ip := range all {
			addresses = append(addresses, Address{IP: ip})
		}
		s.publish(nil, nil, addresses)
	}
	past := func(want ...string) {
		t.Helper()
		var got []string
		for _, a := range s.latest.past {
			got = append(got, a.IP)
		}
		if !slices.Equal(got, want) {
			t.Errorf("past are %q, want %q", got, want)
		}
	}
	publish("1", "2")
	past()
	publish("2", "3")
	past("1")
	publish("2", "3")
	past("1")
	publish("1")
	past("2", "3", "1")
	publish()
	past("1", "2", "3")
	for i := range 200 {
		publish(strconv.Itoa(i))
	}
	if n := len(s.latest.past); n != maxPast || s.latest.past[0].IP != "198" {
		t.Errorf("%d are remembered, the first %v", n, s.latest.past[0])
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
	must.Do(t, c.setDefaults("home"))
	if c.Namespace != "home" || c.Lease != "shield-ingress" || !slices.Equal(c.Namespaces, []string{"a", "b"}) || !strings.HasPrefix(c.Identity, "p_") {
		t.Errorf("it is %+v", c)
	}
	if err := (&Config{Namespaces: []string{"a", ""}}).setDefaults("home"); err == nil {
		t.Error("an empty name of a namespace is no error")
	}
}
