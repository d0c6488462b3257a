package live

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func ExampleWriteTable() {
	without := Run{
		Name:    "without",
		Herd:    Result{Clients: 300, Served: 60, GaveUp: 240, Attempts: 2940, LastServed: time.Second},
		Backend: Stats{Peak: 1206, Busiest: 312, Served: 60, Wasted: 540},
	}
	with := Run{
		Name:    "with",
		Herd:    Result{Clients: 300, Served: 300, Attempts: 675, LastServed: 4640 * time.Millisecond},
		Backend: Stats{Peak: 18, Busiest: 95, Served: 300},
	}
	WriteTable(os.Stdout, "", without, with)
	// Output:
	//                                   without      with
	// clients served                    60 of 300    300 of 300
	// clients that gave up              240          0
	// time until all were served        never        4.6 s
	// requests per client served        49.0         2.2
	// most inside the backend at once   1206         18
	// most reaching it in one second    312          95
	// work for clients that had gone    540 (90 %)   0
}

func TestTableOfARunThatWasStopped(t *testing.T) {
	var out strings.Builder
	if err := WriteTable(&out, "  ", Run{Name: "early", Herd: Result{Clients: 5, GaveUp: 1}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"still trying when stopped         4", "0 of 5", "never", "none served"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("table is\n%swant %q in it", out.String(), want)
		}
	}
}

func TestWatch(t *testing.T) {
	for _, s := range []struct {
		name     string
		terminal bool
		want     string
	}{
		{"a file gets a line per second, and the last state", false,
			"    1.0 s:    0 served,    2 trying,    0 gave up;    0 in the backend\n" +
				"    1.5 s:    0 served,    2 trying,    0 gave up;    0 in the backend\n"},
		{"a terminal gets one line, redrawn", true,
			strings.Join([]string{"",
				"    0.1 s:    0 served,    2 trying,    0 gave up;    0 in the backend"}, "\r\x1b[K")},
	} {
		t.Run(s.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := patient
				c.Clients = 2
				h, err := NewHerd(c)
				if err != nil {
					t.Fatal(err)
				}
				var out strings.Builder
				stop := Watch(&out, s.terminal, h, startBackend(t, calm))
				time.Sleep(1500 * time.Millisecond)
				stop()
				if !strings.HasPrefix(out.String(), s.want) {
					t.Errorf("output is %q, want it to begin with %q", out.String(), s.want)
				}
				if lines := strings.Count(out.String(), "\n"); s.terminal && lines != 1 {
					t.Errorf("a terminal gets %d line ends, want 1", lines)
				}
			})
		})
	}
}
