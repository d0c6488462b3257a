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
		{.9, 100, 8},  // a twelfth
		{1, 100, 8}, {5, 12, 1}, {.5, 3, 0},
	} {
		if got := placesFor(c.rho, c.limit); got != c.want {
			t.Errorf("%d places of %d for %v of what the backend does, want %d", got, c.limit, c.rho, c.want)
		}
	}
}
