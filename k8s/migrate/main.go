package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/herdshield/shield/k8s/cluster"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/translate"
)

// The exit codes.
const (
	asBefore   = 0 // all Ingresses work as before
	isWeaker   = 1
	isRejected = 2 // or something cannot be read
)

const usage = `shield-ingress migrate tells you what becomes of your ingress-nginx Ingresses
with --nginx-annotations. It changes nothing.

Usage: shield-ingress migrate [flags] [file, directory or - ...]

Without arguments it reads the cluster. Exit codes: 0 if all Ingresses work as
before, 1 if something gets weaker, 2 if something is rejected or unreadable.

`

// patience is how long the API server may take.
const patience = time.Minute

// Main runs the command, and returns the exit code.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	f := pflag.NewFlagSet("migrate", pflag.ContinueOnError)
	f.Usage = func() {}
	kubeconfig := f.String("kubeconfig", "", "`file` with the API server's address and credentials")
	namespaces := f.StringSlice("namespaces", nil, "check only these `namespaces` (default: all)")
	classes := f.StringSlice("class", nil, "check only Ingresses of these `classes`, like nginx (default: all)")
	asJSON := f.Bool("json", false, "print JSON")
	switch err := f.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprint(stdout, usage+f.FlagUsages())
		return asBefore
	case err != nil:
		fmt.Fprintf(stderr, "shield-ingress migrate: %v\nTry shield-ingress migrate --help.\n", err)
		return isRejected
	}
	var o translate.Objects
	var err error
	if f.NArg() > 0 {
		o, err = read(f.Args(), stdin)
	} else {
		o, err = ofCluster(cluster.Config{Kubeconfig: *kubeconfig, Namespaces: *namespaces})
	}
	o.Ingresses = slices.DeleteFunc(o.Ingresses, func(in *networkingv1.Ingress) bool {
		return len(*namespaces) > 0 && !slices.Contains(*namespaces, in.Namespace) || len(*classes) > 0 && !slices.Contains(*classes, classOf(in))
	})
	list := Look(o)
	if *asJSON {
		printJSON(stdout, list)
	} else {
		printText(stdout, list)
	}
	if err != nil {
		fmt.Fprintf(stderr, "shield-ingress migrate: %v\n", err)
		return isRejected
	}
	n := count(list)
	switch {
	case n[Rejected] > 0:
		return isRejected
	case n[Weaker] > 0:
		return isWeaker
	}
	return asBefore
}

func ofCluster(config cluster.Config) (o translate.Objects, err error) {
	c, err := cluster.New(config, zap.NewNop())
	if err != nil {
		return o, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.List(ctx)
}

func classOf(in *networkingv1.Ingress) string {
	if name := in.Spec.IngressClassName; name != nil {
		return *name
	}
	return in.Annotations["kubernetes.io/ingress.class"]
}

// count counts Ingresses by verdict.
func count(list []Ingress) map[Verdict]int {
	n := map[Verdict]int{}
	for _, in := range list {
		n[in.Verdict]++
	}
	return n
}

func printJSON(w io.Writer, list []Ingress) {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(struct {
		Ingresses []Ingress       `json:"ingresses"`
		Summary   map[Verdict]int `json:"summary"`
	}{list, count(list)})
}

func printText(w io.Writer, list []Ingress) {
	for _, in := range list {
		fmt.Fprintf(w, "%s/%s: %s\n", in.Namespace, in.Name, map[Verdict]string{
			Rejected: "rejected, no request gets in", Weaker: "weaker than before", Works: "works as before",
		}[in.Verdict])
		var rejected []string
		for _, f := range in.Findings {
			text := f.Advice
			switch f.Verdict {
			case Translated:
				text = "works; shield's own name is " + policy.Prefix + f.Word
			case Works:
				text = "works"
			case Meant:
				text = "ignored, as " + policy.Prefix + "ignore-nginx asks"
			case Rejected:
				if f.What == strings.ToLower(f.What) { // an annotation
					rejected = append(rejected, f.What)
				}
			}
			fmt.Fprintf(w, "  %-10s  %-22s  %s\n", f.Verdict, f.What, text)
		}
		if len(rejected) > 0 {
			fmt.Fprintf(w, "  to serve it anyway: %signore-nginx: %q\n", policy.Prefix, strings.Join(rejected, ", "))
		}
	}
	n := count(list)
	fmt.Fprintf(w, "Ingresses: %d; as before: %d, weaker: %d, rejected: %d\n", len(list), n[Works], n[Weaker], n[Rejected])
}
