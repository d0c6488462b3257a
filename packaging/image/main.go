// Command image packs static programs into an OCI image, without a registry and without a container
// engine, as a tar archive that "docker load", "podman load" and "ctr images import" take:
//
//	image -ref ghcr.io/herdshield/shield:v0.1.0 -o shield.tar [OPTION...] amd64/shield arm64/shield
//
// There is one image for each program, which says itself for which processor it is. An image has one
// layer with the program as /NAME, which is the entry point; the files of -file, such as LICENSE, in
// /; the folders of -dir, which belong to -user; a /tmp; and nothing else. The same input makes the same archive, byte for byte.
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
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

func main() {
	var o options
	flag.StringVar(&o.ref, "ref", "", "what the image is called, as `registry/name:tag`")
	out := flag.String("o", "", "`file` to write")
	flag.StringVar(&o.name, "name", "", "of the program in the image (default: its file name)")
	flag.StringVar(&o.user, "user", "65532:65532", "numeric `uid:gid` that it runs as")
	add := func(list *[]string) func(string) error {
		return func(s string) error { *list = append(*list, s); return nil }
	}
	flag.Func("env", "variable that is set, as `NAME=VALUE`", add(&o.env))
	flag.Func("arg", "`argument` of the program, if it is started without others", add(&o.args))
	flag.Func("file", "`file` that is copied to /", add(&o.files))
	flag.Func("dir", "`folder` that the user can write to, as /data", add(&o.dirs))
	flag.Func("port", "that it listens on, as 8080/tcp: an engine shows it, and opens nothing", add(&o.ports))
	flag.Func("label", "org.opencontainers.image.`NAME=VALUE`", add(&o.labels))
	flag.Parse()
	image, err := o.image(flag.Args())
	if err == nil && *out == "" {
		err = errors.New("want -o FILE")
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
	ref, name, user                string
	env, args, dirs, ports, labels []string
	files                          []string
}

// The media types of the OCI image format.
const media = "application/vnd.oci.image."

type object = map[string]any

var port = regexp.MustCompile(`^[1-9][0-9]{0,4}/(tcp|udp)$`)

// image returns an OCI image layout, as a tar archive, of an image of each program.
func (o options) image(programs []string) ([]byte, error) {
	if !strings.Contains(path.Base(o.ref), ":") {
		return nil, fmt.Errorf("-ref is %q; want registry/name:tag", o.ref)
	}
	uid, gid, err := o.owner()
	if err != nil {
		return nil, err
	}
	if len(programs) == 0 {
		return nil, errors.New("want a program, or one for each processor")
	}
	if o.name == "" {
		o.name = filepath.Base(programs[0])
	}
	copies, err := o.copies()
	if err != nil {
		return nil, err
	}
	labels := object{}
	for _, l := range o.labels {
		name, value, ok := strings.Cut(l, "=")
		if !ok {
			return nil, fmt.Errorf("-label is %q; want NAME=VALUE", l)
		}
		labels["org.opencontainers.image."+name] = value
	}
	ports := object{}
	for _, p := range o.ports {
		if !port.MatchString(p) {
			return nil, fmt.Errorf("-port is %q; want a number and tcp or udp, as 8080/tcp", p)
		}
		ports[p] = object{}
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
			return nil, fmt.Errorf("%s and %s are both for %s; want one program for each processor", other, file, arch)
		}
		seen[arch] = file
		manifests = append(manifests, o.pack(&b, arch, o.layer(program, copies, uid, gid), ports, labels, len(programs) == 1))
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
func (o options) pack(b *blobs, arch string, layer []byte, ports, labels object, alone bool) object {
	config := b.add("config.v1+json", encode(object{
		"architecture": arch, "os": "linux",
		"config": object{
			"User": o.user, "Entrypoint": []string{"/" + o.name}, "Cmd": o.args, "Env": o.env, "WorkingDir": "/",
			"ExposedPorts": ports, "Labels": labels,
		},
		"rootfs": object{"type": "layers", "diff_ids": []string{digest(layer)}},
	}))
	zipped := b.add("layer.v1.tar+gzip", zip(layer))
	manifest := b.add("manifest.v1+json", encode(object{
		"schemaVersion": 2, "mediaType": media + "manifest.v1+json", "config": config, "layers": []object{zipped},
	}))
	manifest["platform"] = object{"architecture": arch, "os": "linux"}
	if alone { // Docker with its own image store reads this in place of the index
		b.entries = append(b.entries, entry{name: "manifest.json", mode: 0o644, data: encode([]object{{
			"Config": where(config), "RepoTags": []string{o.ref}, "Layers": []string{where(zipped)},
		}})})
	}
	return manifest
}

// owner reads -user. Kubernetes can tell that a user is not root only by a number.
func (o options) owner() (uid, gid int, err error) {
	u, g, _ := strings.Cut(o.user, ":")
	uid, err = strconv.Atoi(u)
	if err == nil {
		gid, err = strconv.Atoi(g)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("-user is %q; want two numbers, as 65532:65532", o.user)
	}
	return uid, gid, nil
}

func (o options) copies() (copies []entry, err error) {
	for _, file := range o.files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		copies = append(copies, entry{name: filepath.Base(file), mode: 0o644, data: data})
	}
	return copies, nil
}

func (o options) layer(program []byte, copies []entry, uid, gid int) []byte {
	entries := append([]entry{{name: "tmp/", mode: 0o1777}}, copies...)
	for _, dir := range o.dirs {
		entries = append(entries, entry{name: strings.Trim(dir, "/") + "/", mode: 0o700, uid: uid, gid: gid})
	}
	return archive(append(entries, entry{name: o.name, mode: 0o755, data: program})...)
}

// read returns a static program for Linux, and the processor it is for, as Go calls it.
func read(file string) (program []byte, arch string, err error) {
	program, err = os.ReadFile(file)
	if err != nil {
		return nil, "", err
	}
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return nil, "", fmt.Errorf("%s is no program for Linux: %w", file, err)
	}
	arch, ok := map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}[f.Machine]
	if !ok {
		return nil, "", fmt.Errorf("%s is for %s; want EM_X86_64 or EM_AARCH64", file, f.Machine)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, "", fmt.Errorf("%s needs shared libraries, which the image has not; want it built with CGO_ENABLED=0", file)
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
	name     string
	mode     int64
	uid, gid int
	data     []byte
}

// archive returns a tar archive, without times.
func archive(entries ...entry) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, Uid: e.uid, Gid: e.gid, Size: int64(len(e.data)), Typeflag: tar.TypeReg}
		if strings.HasSuffix(e.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		must(w.WriteHeader(h))
		_, err := io.Copy(w, bytes.NewReader(e.data))
		must(err)
	}
	must(w.Close())
	return b.Bytes()
}

// zip compresses like gzip itself.
func zip(b []byte) []byte {
	var zipped bytes.Buffer
	w, err := gzip.NewWriterLevel(&zipped, gzip.DefaultCompression)
	must(err)
	_, err = w.Write(b)
	must(err)
	must(w.Close())
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
