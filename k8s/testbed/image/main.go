// Command image packs a static binary into an OCI image of one layer, as a tar
// archive that "ctr images import" takes: no registry, no container builder.
//
//	image -ref localhost/backend:1 -o backend.tar [-name NAME] ./backend [ARGUMENT...]
//
// The image holds the binary as /NAME, which is also its entry point, followed by the arguments; a /tmp;
// and nothing else. It runs as -user. The same input makes the same image, byte for byte.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

func main() {
	ref := flag.String("ref", "", "what the image is called, as `registry/name:tag`")
	out := flag.String("o", "", "`file` to write")
	name := flag.String("name", "", "of the binary in the image (default: its file name)")
	user := flag.String("user", "65532:65532", "numeric `uid:gid` that it runs as")
	flag.Parse()
	if err := run(*ref, *out, *name, *user, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ref, out, name, user string, args []string) error {
	if !strings.Contains(path.Base(ref), ":") {
		return fmt.Errorf("-ref is %q; want registry/name:tag", ref)
	}
	if out == "" || len(args) == 0 {
		return errors.New("want -o FILE, and a binary")
	}
	if name == "" {
		name = filepath.Base(args[0])
	}
	binary, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	layer, err := archive(
		entry{name: "tmp/", mode: 0o1777},
		entry{name: name, mode: 0o755, data: binary},
	)
	if err != nil {
		return err
	}
	image, err := pack(ref, user, append([]string{"/" + name}, args[1:]...), layer)
	if err != nil {
		return err
	}
	return os.WriteFile(out, image, 0o644)
}

// pack returns an OCI image layout, as a tar archive, of one image with one layer.
func pack(ref, user string, entrypoint []string, layer []byte) ([]byte, error) {
	var zipped bytes.Buffer
	w, _ := gzip.NewWriterLevel(&zipped, gzip.BestSpeed)
	if _, err := w.Write(layer); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	// The OCI image format's config, manifest and index; of each what is required.
	type object = map[string]any
	const media = "application/vnd.oci.image."
	config := encode(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"User": user, "Entrypoint": entrypoint, "WorkingDir": "/"},
		"rootfs": object{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	blob := func(kind string, b []byte) object {
		return object{"mediaType": media + kind, "digest": digest(b), "size": len(b)}
	}
	manifest := encode(object{
		"schemaVersion": 2, "mediaType": media + "manifest.v1+json",
		"config": blob("config.v1+json", config),
		"layers": []object{blob("layer.v1.tar+gzip", zipped.Bytes())},
	})
	entryOf := blob("manifest.v1+json", manifest)
	entryOf["platform"] = object{"architecture": runtime.GOARCH, "os": "linux"}
	entryOf["annotations"] = object{
		"io.containerd.image.name":          ref,
		"org.opencontainers.image.ref.name": ref[strings.LastIndex(ref, ":")+1:],
	}
	index := encode(object{
		"schemaVersion": 2, "mediaType": media + "index.v1+json", "manifests": []object{entryOf},
	})
	files := []entry{
		{name: "oci-layout", mode: 0o644, data: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{name: "index.json", mode: 0o644, data: index},
	}
	for _, b := range [][]byte{config, manifest, zipped.Bytes()} {
		files = append(files, entry{name: "blobs/" + strings.Replace(digest(b), ":", "/", 1), mode: 0o644, data: b})
	}
	return archive(files...)
}

// An entry is a file, or a directory if its name ends in a slash.
type entry struct {
	name string
	mode int64
	data []byte
}

// archive returns a tar archive, without times and owners.
func archive(entries ...entry) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.data)), Typeflag: tar.TypeReg}
		if strings.HasSuffix(e.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := io.Copy(w, bytes.NewReader(e.data)); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

// encode returns JSON with its keys sorted.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of strings always can be
	}
	return b
}
