// Command kustomize prints what "kubectl apply -k" would apply: the objects of each folder that it is
// given, as YAML. It is here so that nothing needs a kubectl, or depends on which kustomize is in it.
package main

import (
	"fmt"
	"os"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: kustomize folder...")
		os.Exit(2)
	}
	for _, folder := range os.Args[1:] {
		if err := render(folder); err != nil {
			fmt.Fprintf(os.Stderr, "kustomize %s: %v\n", folder, err)
			os.Exit(1)
		}
	}
}

func render(folder string) error {
	objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		return err
	}
	yaml, err := objects.AsYaml()
	if err != nil {
		return err
	}
	_, err = fmt.Printf("---\n%s", yaml)
	return err
}
