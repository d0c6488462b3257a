package migrate

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"github.com/herdshield/shield/k8s/translate"
)

// maxManifest bounds one file. Ours: an API server takes objects of 1.5 MB.
const maxManifest = 64 << 20

// read reads the Ingresses and Services of files, of the files in directories, or of stdin
// ("-"). The error names everything that could not be read.
func read(paths []string, stdin io.Reader) (o translate.Objects, err error) {
	var errs []error
	for _, path := range paths {
		if path == "-" {
			errs = append(errs, readOne("stdin", stdin, &o))
			continue
		}
		errs = append(errs, filepath.WalkDir(path, func(file string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				errs = append(errs, err)
			case d.IsDir() && file != path && strings.HasPrefix(d.Name(), "."):
				return fs.SkipDir
			case d.IsDir() || file != path && !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(file)):
			default:
				f, err := os.Open(file)
				if err == nil {
					err = readOne(file, f, &o)
					_ = f.Close()
				}
				errs = append(errs, err)
			}
			return nil
		}))
	}
	return o, errors.Join(errs...)
}

// separator stands between the documents of a file.
var separator = regexp.MustCompile(`(?m)^---([ \t].*)?\r?$`)

func readOne(name string, from io.Reader, o *translate.Objects) error {
	text, err := io.ReadAll(io.LimitReader(from, maxManifest+1))
	if err == nil && len(text) > maxManifest {
		err = fmt.Errorf("it has more than %d bytes", maxManifest)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var errs []error
	for i, document := range separator.Split(string(text), -1) {
		if err := add([]byte(document), o); err != nil {
			errs = append(errs, fmt.Errorf("%s, document %d: %w", name, i+1, err))
		}
	}
	return errors.Join(errs...)
}

// add adds the objects of a document. Those of other kinds are left out.
func add(document []byte, o *translate.Objects) error {
	var is struct {
		APIVersion, Kind string
		Items            []map[string]any
	}
	if err := yaml.Unmarshal(document, &is); err != nil {
		return err
	}
	switch {
	case is.Items != nil:
		var errs []error
		for _, item := range is.Items {
			if item["kind"] == nil { // as in an IngressList
				item["apiVersion"], item["kind"] = is.APIVersion, strings.TrimSuffix(is.Kind, "List")
			}
			one, err := yaml.Marshal(item)
			errs = append(errs, errors.Join(err, add(one, o)))
		}
		return errors.Join(errs...)
	case is.Kind == "Ingress" && is.APIVersion == "networking.k8s.io/v1":
		in := new(networkingv1.Ingress)
		err := yaml.Unmarshal(document, in)
		o.Ingresses = append(o.Ingresses, in)
		if in.Namespace == "" {
			in.Namespace = "default"
		}
		return err
	case is.Kind == "Ingress" && slices.Contains([]string{"", "extensions/v1beta1", "networking.k8s.io/v1beta1"}, is.APIVersion):
		return fmt.Errorf("an Ingress with the apiVersion %q; use networking.k8s.io/v1", is.APIVersion)
	case is.Kind == "Service" && is.APIVersion == "v1":
		s := new(corev1.Service)
		err := yaml.Unmarshal(document, s)
		if s.Namespace == "" {
			s.Namespace = "default"
		}
		o.Services = append(o.Services, s)
		return err
	}
	return nil
}
