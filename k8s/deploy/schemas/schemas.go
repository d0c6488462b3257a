// Package schemas makes JSON Schemas of Kubernetes' objects for kubeconform, from files in
// Kubernetes' Go modules: it downloads no schemas.
//
// They are strict (an unknown field is an error) and self-contained (no file refers to another).
package schemas

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

type schema = map[string]any

// Types that are "string" in OpenAPI, but also accept numbers.
var overrides = map[string]schema{
	"io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"oneOf": []any{schema{"type": "string"}, schema{"type": "integer"}}},
	"io.k8s.apimachinery.pkg.api.resource.Quantity":   {"oneOf": []any{schema{"type": "string"}, schema{"type": "number"}}},
}

// FromSwagger writes the schema of every kind in Kubernetes' swagger.json to folder, and
// returns how many there are.
func FromSwagger(swagger io.Reader, folder string) (int, error) {
	var file struct {
		Definitions map[string]schema `json:"definitions"`
	}
	if err := json.NewDecoder(swagger).Decode(&file); err != nil {
		return 0, fmt.Errorf("reading the swagger file: %w", err)
	}
	definitions, needs := map[string]schema{}, map[string]map[string]bool{}
	for name, s := range file.Definitions {
		needs[name] = map[string]bool{}
		definitions[name] = strict(s, needs[name])
		if s, ok := overrides[name]; ok {
			definitions[name], needs[name] = s, nil
		}
	}
	n := 0
	for name, s := range file.Definitions {
		kinds, _ := s["x-kubernetes-group-version-kind"].([]any)
		for _, k := range kinds {
			kind, _ := k.(schema)
			group, _ := kind["group"].(string)
			version, _ := kind["version"].(string)
			word, _ := kind["kind"].(string)
			all := map[string]schema{}
			collect(name, definitions, needs, all)
			whole := schema{"definitions": all}
			for k, v := range definitions[name] {
				whole[k] = v
			}
			if err := write(folder, group, version, word, whole); err != nil {
				return n, err
			}
			n++
		}
	}
	return n, nil
}

// FromCRD writes the schemas of a CustomResourceDefinition, as YAML, to folder.
func FromCRD(crd []byte, folder string) error {
	var file struct {
		Spec struct {
			Group string
			Names struct{ Kind string }
			// Versions have more fields, which are not needed here.
			Versions []struct {
				Name   string
				Schema struct{ OpenAPIV3Schema schema }
			}
		}
	}
	if err := yaml.Unmarshal(crd, &file); err != nil {
		return fmt.Errorf("reading the CustomResourceDefinition: %w", err)
	}
	if len(file.Spec.Versions) == 0 {
		return fmt.Errorf("the CustomResourceDefinition %q has no versions", file.Spec.Names.Kind)
	}
	for _, v := range file.Spec.Versions {
		s := strict(v.Schema.OpenAPIV3Schema, nil)
		if properties, ok := s["properties"].(schema); ok {
			properties["metadata"] = schema{"type": "object"} // the API server checks it
		}
		if err := write(folder, file.Spec.Group, v.Name, file.Spec.Names.Kind, s); err != nil {
			return err
		}
	}
	return nil
}

// strict returns the parts of s that kubeconform checks. It adds the definitions that s refers to to refs.
func strict(s schema, refs map[string]bool) schema {
	if ref, ok := s["$ref"].(string); ok {
		name := ref[strings.LastIndexByte(ref, '/')+1:]
		refs[name] = true
		return schema{"$ref": "#/definitions/" + name}
	}
	if s["format"] == "int-or-string" || s["x-kubernetes-int-or-string"] == true {
		return schema{"oneOf": []any{schema{"type": "string"}, schema{"type": "number"}}}
	}
	out := schema{}
	for _, k := range []string{"type", "required", "enum", "pattern"} {
		if v, ok := s[k]; ok {
			out[k] = v
		}
	}
	if properties, ok := s["properties"].(schema); ok {
		strictly := schema{}
		for name, p := range properties {
			strictly[name] = strict(p.(schema), refs)
		}
		out["properties"] = strictly
		if _, open := s["additionalProperties"]; !open && s["x-kubernetes-preserve-unknown-fields"] != true {
			out["additionalProperties"] = false
		}
	}
	for _, k := range []string{"items", "additionalProperties"} {
		if inner, ok := s[k].(schema); ok {
			out[k] = strict(inner, refs)
		}
	}
	return out
}

// collect adds the definition of name, and those that it needs, to all.
func collect(name string, definitions map[string]schema, needs map[string]map[string]bool, all map[string]schema) {
	if _, ok := all[name]; ok {
		return
	}
	all[name] = definitions[name]
	for other := range needs[name] {
		collect(other, definitions, needs, all)
	}
}

// Location returns kubeconform's -schema-location for the schemas in a folder.
func Location(folder string) string {
	return filepath.Join(folder, "{{.ResourceKind}}{{.KindSuffix}}.json")
}

// write writes a file with the name of Location: <kind>[-<group>]-<version>.json, with only
// the first part of the group.
func write(folder, group, version, kind string, s schema) error {
	name := strings.ToLower(kind)
	if group, _, _ := strings.Cut(group, "."); group != "" {
		name += "-" + group
	}
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, name+"-"+version+".json"), b, 0o644)
}
