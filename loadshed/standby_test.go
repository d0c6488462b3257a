package loadshed

import "testing"

func TestPlacesFor(t *testing.T) {
	for _, c := range []struct {
		rho   float64
		limit int
		want  int32
	}{
		{0, 100, 0}, {.005, 100, 0},
		{.11, 100, 3}, // one of a thousand finds three taken, of a hundred two
		{.5, 100, 7},  // 0.5^7 < 0.01
		{.9, 100, 33}, // a third
		{1, 100, 33}, {5, 12, 4}, {.5, 3, 1},
	} {
		if got := placesFor(c.rho, c.limit); got != c.want {
			t.Errorf("%d places of %d for %v of what the backend does, want %d", got, c.limit, c.rho, c.want)
		}
	}
}
