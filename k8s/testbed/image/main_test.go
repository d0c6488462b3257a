package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/herdshield/shield/k8s/testbed/must"
)

// TestImage reads an image back as a container runtime does: from the index to the
// manifest, to the config and the layer, each by its digest.
func TestImage(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "tool")
	must.Do(t, os.WriteFile(binary, []byte("\x7fELF and so on"), 0o755))
	out := filepath.Join(dir, "tool.tar")
	const ref = "registry.example:5000/some/tool:v1"
	make := func() []byte {
		must.Do(t, run(ref, out, "", "7:8", []string{binary, "-flag"}))
		return must.Get(os.ReadFile(out))(t)
	}
	image := make()
	if !bytes.Equal(image, make()) {
		t.Error("the same input made another image")
	}
	files := untar(t, image)
	blob := func(d string, into any) []byte {
		b, ok := files["blobs/"+strings.Replace(d, ":", "/", 1)]
		if !ok || digest(b) != d {
			t.Fatalf("there is no blob %s among %v", d, slices.Sorted(maps.Keys(files)))
		}
		if into != nil {
			must.Do(t, json.Unmarshal(b, into))
		}
		return b
	}
	type descriptor struct {
		Digest      string
		Annotations map[string]string
	}
	var index struct{ Manifests []descriptor }
	must.Do(t, json.Unmarshal(files["index.json"], &index))
	annotations := index.Manifests[0].Annotations
	if name, tag := annotations["io.containerd.image.name"], annotations["org.opencontainers.image.ref.name"]; name != ref || tag != "v1" {
		t.Errorf("the image is called %q, tag %q", name, tag)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	blob(index.Manifests[0].Digest, &manifest)
	var config struct {
		Config struct {
			User       string
			Entrypoint []string
		}
		Rootfs struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	blob(manifest.Config.Digest, &config)
	if config.Config.User != "7:8" || !slices.Equal(config.Config.Entrypoint, []string{"/tool", "-flag"}) {
		t.Errorf("it runs %v as %s", config.Config.Entrypoint, config.Config.User)
	}
	zipped := must.Get(gzip.NewReader(bytes.NewReader(blob(manifest.Layers[0].Digest, nil))))(t)
	layer := must.Get(io.ReadAll(zipped))(t)
	if digest(layer) != config.Rootfs.DiffIDs[0] {
		t.Error("the config names another layer")
	}
	if got := string(untar(t, layer)["tool"]); got != "\x7fELF and so on" {
		t.Errorf("the layer has %q", got)
	}
}

func TestWrongFlags(t *testing.T) {
	for _, c := range []struct {
		ref, out string
		args     []string
		want     string
	}{
		{"tool", "tool.tar", []string{"tool"}, "registry/name:tag"}, {"host:5000/tool", "tool.tar", []string{"tool"}, "registry/name:tag"},
		{"tool:1", "", []string{"tool"}, "-o FILE"}, {"tool:1", "tool.tar", nil, "a binary"},
	} {
		if err := run(c.ref, c.out, "", "", c.args); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("ref %q, out %q, %v: %v; want one that says %q", c.ref, c.out, c.args, err, c.want)
		}
	}
}

func untar(t *testing.T, b []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}
