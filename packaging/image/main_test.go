package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
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

// A layout is the files of an archive, in which a container runtime finds each part by its digest.
type layout map[string][]byte

func (files layout) blob(t *testing.T, d descriptor, into any) []byte {
	t.Helper()
	b, ok := files["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
	if !ok || digest(b) != d.Digest {
		t.Fatalf("there is no blob %s among %v", d.Digest, slices.Sorted(maps.Keys(files)))
	}
	if into != nil {
		if err := json.Unmarshal(b, into); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// An image is for each of its processors, and the same for the same input. For one alone Docker's manifest.json names the same parts as
// the index.
func TestImages(t *testing.T) {
	const ref = "registry.example:5000/some/tool:v1"
	o := options{ref: ref, config: object{"Cmd": []string{"run"}}, dirs: []string{"/data"}, files: []string{"../../LICENSE"}}
	amd, content := program(t, "tool", elf.EM_X86_64, elf.PT_LOAD)
	arm, _ := program(t, "tool", elf.EM_AARCH64, elf.PT_LOAD)
	for want, programs := range map[string][]string{"amd64 arm64": {amd, arm}, "amd64": {amd}} {
		image, err := o.image(programs)
		if again, _ := o.image(programs); err != nil || !bytes.Equal(image, again) {
			t.Fatalf("%v, or the same input made another image", err)
		}
		_, files := untar(t, image)
		var index struct{ Manifests []descriptor }
		if err := json.Unmarshal(files["index.json"], &index); err != nil {
			t.Fatal(err)
		}
		root := index.Manifests
		if len(root) != 1 || root[0].Annotations["io.containerd.image.name"] != ref || root[0].Annotations["org.opencontainers.image.ref.name"] != "v1" {
			t.Fatalf("the index is %+v; want one entry, called %s", root, ref)
		}
		if len(programs) > 1 {
			files.blob(t, root[0], &index)
		}
		var processors []string
		for _, one := range index.Manifests {
			processors = append(processors, one.Platform.Architecture)
		}
		if got := strings.Join(processors, " "); got != want {
			t.Errorf("the images are for %s; want %s", got, want)
		}
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		files.blob(t, index.Manifests[0], &manifest)
		path := func(d descriptor) string { return "blobs/" + strings.Replace(d.Digest, ":", "/", 1) }
		docker, alone := files["manifest.json"]
		if shown := fmt.Sprintf(`[{"Config":%q,"Layers":[%q],"RepoTags":[%q]}]`, path(manifest.Config), path(manifest.Layers[0]), ref); alone != (len(programs) == 1) || alone && string(docker) != shown {
			t.Errorf("manifest.json is %s; want %s, if it is for one processor", docker, shown)
		}

		var c struct {
			Architecture string
			Config       struct {
				User            string
				Entrypoint, Cmd []string
			}
			Rootfs struct {
				DiffIDs []string `json:"diff_ids"`
			}
		}
		files.blob(t, manifest.Config, &c)
		if is := c.Config; c.Architecture != "amd64" || is.User != "65532:65532" || !slices.Equal(is.Entrypoint, []string{"/tool"}) || !slices.Equal(is.Cmd, []string{"run"}) {
			t.Errorf("the config is %+v", c)
		}
		zipped, err := gzip.NewReader(bytes.NewReader(files.blob(t, manifest.Layers[0], nil)))
		if err != nil {
			t.Fatal(err)
		}
		layer, err := io.ReadAll(zipped)
		if err != nil || !slices.Equal(c.Rootfs.DiffIDs, []string{digest(layer)}) {
			t.Errorf("%v, or the config names another layer", err)
		}
		headers, contents := untar(t, layer)
		if names := slices.Sorted(maps.Keys(headers)); !slices.Equal(names, []string{"LICENSE", "data/", "tmp/", "tool"}) {
			t.Fatalf("the image has %v", names)
		}
		if !bytes.Equal(contents["tool"], content) || headers["tool"].Mode != 0o755 || headers["tool"].Uid != 0 {
			t.Error("the program is not as it was, or not root's")
		}
		if headers["LICENSE"].Mode != 0o644 || !bytes.Contains(contents["LICENSE"], []byte("Apache License")) {
			t.Error("the licence cannot be read")
		}
		if d := headers["data/"]; d.Uid != 65532 || d.Gid != 65532 || d.Mode != 0o700 {
			t.Errorf("/data is of %d:%d, mode %o", d.Uid, d.Gid, d.Mode)
		}
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

func untar(t *testing.T, b []byte) (headers map[string]*tar.Header, contents layout) {
	t.Helper()
	headers, contents = map[string]*tar.Header{}, layout{}
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
