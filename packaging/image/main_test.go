package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// program writes the start of a program for Linux: its header, and one program header.
func program(t *testing.T, name string, machine elf.Machine, kind elf.ProgType) (file string, content []byte) {
	t.Helper()
	var b bytes.Buffer
	ident := [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}
	write := func(v any) {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	write(elf.Header64{
		Ident: ident, Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1, Shentsize: 64,
	})
	write(elf.Prog64{Type: uint32(kind)})
	file = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, b.Bytes(), 0o755); err != nil {
		t.Fatal(err)
	}
	return file, b.Bytes()
}

type descriptor struct {
	MediaType, Digest string
	Platform          struct{ Architecture, OS string }
	Annotations       map[string]string
}

// An archiveReader reads an image back as a container runtime does: each part by its digest.
type archiveReader map[string][]byte

func (files archiveReader) blob(t *testing.T, d string, into any) []byte {
	t.Helper()
	b, ok := files["blobs/"+strings.Replace(d, ":", "/", 1)]
	if !ok || digest(b) != d {
		t.Fatalf("there is no blob %s among %v", d, slices.Sorted(maps.Keys(files)))
	}
	if into != nil {
		read := json.NewDecoder(bytes.NewReader(b))
		if err := read.Decode(into); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (files archiveReader) index(t *testing.T, b []byte) (list []descriptor) {
	t.Helper()
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal(b, &index); err != nil {
		t.Fatal(err)
	}
	return index.Manifests
}

// layer returns the files of an image, and its config.
func (files archiveReader) layer(t *testing.T, manifest string) (map[string]*tar.Header, archiveReader, config) {
	t.Helper()
	var m struct {
		Config descriptor
		Layers []descriptor
	}
	files.blob(t, manifest, &m)
	var c config
	files.blob(t, m.Config.Digest, &c)
	if len(m.Layers) != 1 || len(c.Rootfs.DiffIDs) != 1 {
		t.Fatalf("there are %d layers; want one", len(m.Layers))
	}
	zipped, err := gzip.NewReader(bytes.NewReader(files.blob(t, m.Layers[0].Digest, nil)))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(zipped)
	if err != nil {
		t.Fatal(err)
	}
	if digest(layer) != c.Rootfs.DiffIDs[0] {
		t.Error("the config names another layer")
	}
	headers, contents := untar(t, layer)
	return headers, contents, c
}

type config struct {
	Architecture string
	Config       struct {
		User            string
		Entrypoint, Cmd []string
	}
	Rootfs struct {
		DiffIDs []string `json:"diff_ids"`
	}
}

func TestImageForTwoProcessors(t *testing.T) {
	amd, content := program(t, "tool", elf.EM_X86_64, elf.PT_LOAD)
	arm, _ := program(t, "tool", elf.EM_AARCH64, elf.PT_LOAD)
	const ref = "registry.example:5000/some/tool:v1"
	o := options{
		ref: ref, config: object{"Cmd": []string{"run"}}, dirs: []string{"/data"}, files: []string{"../../LICENSE"},
	}
	make := func() []byte {
		image, err := o.image([]string{amd, arm})
		if err != nil {
			t.Fatal(err)
		}
		return image
	}
	image := make()
	if !bytes.Equal(image, make()) {
		t.Error("the same input made another image")
	}
	_, contents := untar(t, image)
	root := contents.index(t, contents["index.json"])
	if len(root) != 1 || root[0].Annotations["io.containerd.image.name"] != ref || root[0].Annotations["org.opencontainers.image.ref.name"] != "v1" {
		t.Fatalf("the index is %+v; want one entry, called %s", root, ref)
	}
	images := contents.index(t, contents.blob(t, root[0].Digest, nil))
	if len(images) != 2 || images[0].Platform.Architecture != "amd64" || images[1].Platform.Architecture != "arm64" {
		t.Fatalf("the images are %+v; want amd64 and arm64", images)
	}
	if _, ok := contents["manifest.json"]; ok {
		t.Error("the archive has Docker's manifest.json, which knows one processor only")
	}
	headers, files, c := contents.layer(t, images[0].Digest)
	if names := slices.Sorted(maps.Keys(headers)); !slices.Equal(names, []string{"LICENSE", "data/", "tmp/", "tool"}) {
		t.Errorf("the image has %v", names)
	}
	if !bytes.Equal(files["tool"], content) || headers["tool"].Mode != 0o755 || headers["tool"].Uid != 0 {
		t.Error("the program is not as it was, or not root's")
	}
	if licence := headers["LICENSE"]; licence.Mode != 0o644 || !bytes.Contains(files["LICENSE"], []byte("Apache License")) {
		t.Error("the licence cannot be read")
	}
	if d := headers["data/"]; d.Uid != 65532 || d.Gid != 65532 || d.Mode != 0o700 {
		t.Errorf("/data is of %d:%d, mode %o", d.Uid, d.Gid, d.Mode)
	}
	is := c.Config
	if c.Architecture != "amd64" || is.User != "65532:65532" || !slices.Equal(is.Entrypoint, []string{"/tool"}) || !slices.Equal(is.Cmd, []string{"run"}) {
		t.Errorf("the config is %+v", c)
	}
}

// Docker's manifest.json names the same parts as the index.
func TestImageForOneProcessor(t *testing.T) {
	file, _ := program(t, "tool", elf.EM_AARCH64, elf.PT_LOAD)
	image, err := options{ref: "tool:1"}.image([]string{file})
	if err != nil {
		t.Fatal(err)
	}
	_, contents := untar(t, image)
	root := contents.index(t, contents["index.json"])
	headers, _, c := contents.layer(t, root[0].Digest)
	if c.Architecture != "arm64" || headers["tool"] == nil {
		t.Errorf("the image is for %s, and has %v", c.Architecture, headers)
	}
	var docker []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(contents["manifest.json"], &docker); err != nil {
		t.Fatal(err)
	}
	var m struct {
		Config descriptor
		Layers []descriptor
	}
	contents.blob(t, root[0].Digest, &m)
	path := func(d descriptor) string { return "blobs/" + strings.Replace(d.Digest, ":", "/", 1) }
	if d := docker[0]; d.Config != path(m.Config) || !slices.Equal(d.Layers, []string{path(m.Layers[0])}) || !slices.Equal(d.RepoTags, []string{"tool:1"}) {
		t.Errorf("manifest.json is %+v; want the parts of %+v", d, m)
	}
}

func TestMistakes(t *testing.T) {
	good, _ := program(t, "good", elf.EM_X86_64, elf.PT_LOAD)
	shared, _ := program(t, "shared", elf.EM_X86_64, elf.PT_INTERP)
	sparc, _ := program(t, "sparc", elf.EM_SPARCV9, elf.PT_LOAD)
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ref      string
		programs []string
		want     string
	}{
		{"tool", []string{good}, "registry/name:tag"},
		{"host:5000/tool", []string{good}, "registry/name:tag"},
		{"tool:1", nil, "no program is given"},
		{"tool:1", []string{text}, "is not a Linux program"},
		{"tool:1", []string{shared}, "CGO_ENABLED=0"},
		{"tool:1", []string{sparc}, "EM_SPARCV9"},
		{"tool:1", []string{good, good}, "both for amd64"},
	} {
		o := options{ref: c.ref}
		if _, err := o.image(c.programs); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v; want one that says %q", c, err, c.want)
		}
	}
}

func untar(t *testing.T, b []byte) (headers map[string]*tar.Header, contents archiveReader) {
	t.Helper()
	headers, contents = map[string]*tar.Header{}, archiveReader{}
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return headers, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		headers[h.Name] = h
		if contents[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}
