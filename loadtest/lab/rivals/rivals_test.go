package main

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv(caddyVar) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}
