package operate

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield/caddymodule/adminapi"
)

// stoppable are Shields that say nothing until they are stopped.
type stoppable struct {
	Shields
	stopped chan struct{}
}

func (stoppable) Watch(string, uint64, bool, bool) (adminapi.Watch, error) {
	return adminapi.Watch{}, nil
}

func (s stoppable) Stopped() <-chan struct{} { return s.stopped }

// Followers get a line for each second that is announced, until the config is no longer in force. There are
// so many at a time, and no more.
func TestFollowers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shields := stoppable{stopped: make(chan struct{})}
		follow := func() (*httptest.ResponseRecorder, error) {
			w := httptest.NewRecorder()
			return w, serveLive(w, httptest.NewRequest(http.MethodGet, "/shield/live?follow=1", nil), shields)
		}
		Announce(7)
		for range maxFollowers {
			go func() {
				w, err := follow()
				if err != nil {
					t.Error(err)
				}
				for lines, seq := json.NewDecoder(w.Body), uint64(7); seq < 10; seq++ {
					var is adminapi.Watch
					if err := lines.Decode(&is); err != nil || is.Seq != seq {
						t.Errorf("second %d, %v; want %d", is.Seq, err, seq)
					}
				}
			}()
		}
		for seq := uint64(8); seq < 10; seq++ {
			synctest.Wait()
			Announce(seq)
		}
		synctest.Wait()
		var api caddy.APIError
		if _, err := follow(); !errors.As(err, &api) || api.HTTPStatus != http.StatusServiceUnavailable {
			t.Errorf("with %d followers: %v", maxFollowers, err)
		}
		close(shields.stopped)
		synctest.Wait()
		if n := followers.Load(); n != 0 {
			t.Errorf("%d followers are left", n)
		}
		Announce(10) // no one waits any more
	})
}
