package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestDiagramsAreDrawn(t *testing.T) {
	for file, draw := range diagrams {
		old, err := os.ReadFile(filepath.Join("../../../docs", file))
		if err != nil || !bytes.Equal(old, draw().svg()) {
			t.Errorf("docs/%s is out of date (%v); go -C loadtest/lab run ./diagrams ../../docs writes it", file, err)
		}
	}
}
