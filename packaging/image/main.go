// Command image packs static programs into an OCI image, without a registry and without a container
// engine, as a tar archive that "docker load", "podman load" and "ctr images import" take:
//
//	image -ref ghcr.io/herdshield/shield:v0.1.0 -o shield.tar [OPTION...] amd64/shield arm64/shield
//
// There is one image for each program, which says itself for which processor it is. An image has one
// layer with the program, which is the entry point; the files of -file, such as LICENSE, in /; the
// folders of -dir, which belong to its user; a /tmp; and nothing else. It runs as 65532:65532. The same
// input makes the same archive, byte for byte.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	var o options
	flag.StringVar(&o.ref, "ref", "", "what the image is called, as `registry/name:tag`")
	out := flag.String("o", "", "`file` to write")
	flag.Func("config", "`JSON` of the image format's config, as {\"Cmd\":[\"run\"],\"ExposedPorts\":{\"8080/tcp\":{}}}",
		func(text string) error { return json.Unmarshal([]byte(text), &o.config) })
	flag.Func("file", "`file` that is copied to /", func(s string) error { o.files = append(o.files, s); return nil })
	flag.Func("dir", "`folder` that the user can write to, as /data", func(s string) error { o.dirs = append(o.dirs, s); return nil })
	flag.Parse()
	image, err := o.image(flag.Args())
	if err == nil && *out == "" {
		err = errors.New("-o is missing; use -o FILE")
	}
	if err == nil {
		err = os.WriteFile(*out, image, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// options are the same for all processors.
type options struct {
	ref         string
	config      object // beside the user, the entry point and the working directory
	files, dirs []string
}

// user is whose number the image runs as: Kubernetes can tell that a user is not root only by a number.
const user = 65532

// The media types of the OCI image format.
const media = "application/vnd.oci.image."

type object = map[string]any

// image returns an OCI image layout, as a tar archive, of an image of each program.
func (o options) image(programs []string) ([]byte, error) {
	if !strings.Contains(path.Base(o.ref), ":") {
		return nil, fmt.Errorf("-ref is %q; use registry/name:tag", o.ref)
	}
	if len(programs) == 0 {
		return nil, errors.New("no program is given; add one, or one for each processor")
	}
	name := filepath.Base(programs[0])
	config := object{"User": fmt.Sprintf("%d:%[1]d", user), "Entrypoint": []string{"/" + name}, "WorkingDir": "/"}
	maps.Copy(config, o.config)
	entries := []entry{{name: "tmp/", mode: 0o1777}}
	for _, file := range o.files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{name: filepath.Base(file), mode: 0o644, data: data})
	}
	for _, dir := range o.dirs {
		entries = append(entries, entry{name: strings.Trim(dir, "/") + "/", mode: 0o700, owner: user})
	}
	var b blobs
	var manifests []object
	seen := map[string]string{}
	for _, file := range programs {
		program, arch, err := read(file)
		if err != nil {
			return nil, err
		}
		if other, ok := seen[arch]; ok {
			return nil, fmt.Errorf("%s and %s are both for %s; use one program for each processor", other, file, arch)
		}
		seen[arch] = file
		layer := archive(append(slices.Clip(entries), entry{name: name, mode: 0o755, data: program})...)
		manifests = append(manifests, o.pack(&b, arch, layer, config, len(programs) == 1))
	}
	root := manifests[0]
	if len(manifests) > 1 {
		root = b.add("index.v1+json", index(manifests...))
	}
	root["annotations"] = object{
		"io.containerd.image.name":          o.ref,
		"org.opencontainers.image.ref.name": o.ref[strings.LastIndex(o.ref, ":")+1:],
	}
	return archive(append([]entry{
		{name: "oci-layout", mode: 0o644, data: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{name: "index.json", mode: 0o644, data: index(root)},
	}, b.entries...)...), nil
}

// pack adds the image for a processor, and returns what refers to its manifest.
func (o options) pack(b *blobs, arch string, layer []byte, config object, alone bool) object {
	about := b.add("config.v1+json", encode(object{
		"architecture": arch, "os": "linux", "config": config,
		"rootfs": object{"type": "layers", "diff_ids": []string{digest(layer)}},
	}))
	zipped := b.add("layer.v1.tar+gzip", zip(layer))
	manifest := b.add("manifest.v1+json", encode(object{
		"schemaVersion": 2, "mediaType": media + "manifest.v1+json", "config": about, "layers": []object{zipped},
	}))
	manifest["platform"] = object{"architecture": arch, "os": "linux"}
	if alone { // Docker with its own image store reads this in place of the index
		b.entries = append(b.entries, entry{name: "manifest.json", mode: 0o644, data: encode([]object{{
			"Config": where(about), "RepoTags": []string{o.ref}, "Layers": []string{where(zipped)},
		}})})
	}
	return manifest
}

// read returns a static program for Linux, and the processor it is for, as Go calls it.
func read(file string) (program []byte, arch string, err error) {
	program, err = os.ReadFile(file)
	if err != nil {
		return nil, "", err
	}
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return nil, "", fmt.Errorf("%s is not a Linux program: %w", file, err)
	}
	arch, ok := map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}[f.Machine]
	if !ok {
		return nil, "", fmt.Errorf("%s is for %s; use EM_X86_64 or EM_AARCH64", file, f.Machine)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, "", fmt.Errorf("%s needs shared libraries, which the image doesn't have; build it with CGO_ENABLED=0", file)
		}
	}
	return program, arch, nil
}

// blobs are the parts of an image, by digest.
type blobs struct{ entries []entry }

// add returns what refers to a part.
func (b *blobs) add(kind string, data []byte) object {
	o := object{"mediaType": media + kind, "digest": digest(data), "size": len(data)}
	b.entries = append(b.entries, entry{name: where(o), mode: 0o644, data: data})
	return o
}

// where is the name of a part in the archive.
func where(blob object) string {
	return "blobs/" + strings.Replace(blob["digest"].(string), ":", "/", 1)
}

func index(manifests ...object) []byte {
	return encode(object{"schemaVersion": 2, "mediaType": media + "index.v1+json", "manifests": manifests})
}

// An entry is a file, or a directory if its name ends in a slash.
type entry struct {
	name  string
	mode  int64
	owner int
	data  []byte
}

// archive returns a tar archive, without times. A name that ends in a slash is a directory's.
func archive(entries ...entry) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := tar.Header{Name: e.name, Mode: e.mode, Uid: e.owner, Gid: e.owner, Size: int64(len(e.data))}
		must(w.WriteHeader(&h))
		_, err := w.Write(e.data)
		must(err)
	}
	must(w.Close())
	return b.Bytes()
}

func zip(b []byte) []byte {
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, err := w.Write(b)
	must(errors.Join(err, w.Close()))
	return zipped.Bytes()
}

// must is for what cannot fail: writing to memory, and JSON of maps of strings.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

func encode(v any) []byte {
	b, err := json.Marshal(v)
	must(err)
	return b
}
