//go:build ignore

// wrapper prints the go.mod of a module that k8s.io/kubernetes can be built from.
// Its own go.mod replaces the modules of its staging folder by that folder, which
// is not in the module's zip; each is published as a module of its own, too.
//
//	go run wrapper.go v1.36.3 > go.mod
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"strings"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 || !strings.HasPrefix(os.Args[1], "v1.") {
		log.Fatalf("arguments are %q; use the version of Kubernetes, as in v1.36.3", os.Args[1:])
	}
	version := os.Args[1]
	var module struct{ GoMod string }
	read(&module, "go", "mod", "download", "-json", "k8s.io/kubernetes@"+version)
	var mod struct {
		Go      string
		Replace []struct{ Old, New struct{ Path string } }
	}
	read(&mod, "go", "mod", "edit", "-json", module.GoMod)

	fmt.Printf("module wrapper\n\ngo %s\n\nrequire k8s.io/kubernetes %s\n\nreplace (\n", mod.Go, version)
	for _, r := range mod.Replace {
		if strings.HasPrefix(r.New.Path, "./staging/") {
			fmt.Printf("\t%s => %s v0%s\n", r.Old.Path, r.Old.Path, strings.TrimPrefix(version, "v1"))
		}
	}
	fmt.Println(")")
}

// read decodes the JSON that a command prints.
func read(into any, name string, args ...string) {
	command := exec.Command(name, args...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err == nil {
		err = json.Unmarshal(out, into)
	}
	if err != nil {
		log.Fatalf("%s: %v", command, err)
	}
}
