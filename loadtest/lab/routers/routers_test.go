// Package routers checks that a Guard fits into Go's usual routers, with the lines of docs/guides/go.md.
package routers

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadtest/lab/must"
)

func hello(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }

func ofChi(guard *shield.Guard) http.Handler {
	r := chi.NewRouter()
	r.Use(guard.Handler)
	r.Get("/", hello)
	return r
}

func ofEcho(guard *shield.Guard) http.Handler {
	e := echo.New()
	e.Use(echo.WrapMiddleware(guard.Handler))
	e.GET("/", func(c echo.Context) error { return c.String(http.StatusOK, "hello") })
	return e
}

func ofGin(guard *shield.Guard) http.Handler {
	r := gin.New()
	r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello") })
	return guard.Handler(r)
}

// Each router serves what the Guard admits, and its handlers see nothing of the rest.
func TestRouters(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	for name, of := range map[string]func(*shield.Guard) http.Handler{"chi": ofChi, "echo": ofEcho, "gin": ofGin} {
		t.Run(name, func(t *testing.T) {
			config := shield.RatePerClient(1, 2)
			config.Concurrency = 1
			handler := of(shield.Must(shield.New(config, nil)))
			for i, want := range []int{200, 200, 429} {
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
				if w.Code != want || want == 200 && w.Body.String() != "hello" || want == 429 && w.Header().Get("Retry-After") == "" {
					t.Errorf("request %d: %d %v %q; want %d", i+1, w.Code, w.Header(), w.Body, want)
				}
			}
		})
	}
}

// The lines of docs/guides/go.md are those above.
func TestLinesOfDocs(t *testing.T) {
	page := must.Read(t, "../../../docs/guides/go.md")
	source := must.Read(t, "routers_test.go")
	for _, line := range []string{"r.Use(" + "guard.Handler)", "e.Use(" + "echo.WrapMiddleware(guard.Handler))", "guard.Handler(" + "r)"} {
		if !strings.Contains(page, line) || !strings.Contains(source, line) {
			t.Errorf("the page and this test do not both have %s", line)
		}
	}
}
