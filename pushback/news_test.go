package pushback

import "testing"

// News are told in the order in which they came; the oldest are lost where there are too many.
func TestNewsAreBounded(t *testing.T) {
	a := new(Appointments)
	a.news.add(Note{Key: 1})
	if a.HasNews() {
		t.Error("there are news, and no other replica")
	}
	a.Join(0, 0, 2, 0)
	for key := range uint64(maxNews + 500) {
		a.news.add(Note{Key: key})
	}
	next := uint64(500)
	for a.HasNews() {
		for _, n := range a.News(nil, 300) {
			if n.Key != next {
				t.Fatalf("the note of %d is told, want that of %d", n.Key, next)
			}
			next++
		}
	}
	if next != maxNews+500 {
		t.Errorf("the last note that is told is of %d, want %d", next-1, maxNews+499)
	}
}
