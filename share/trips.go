package share

// trips lets requests wait for the answer to what is told to the store next.
type trips struct{ flying, waiting chan struct{} }

// next returns a channel that is closed when what is sent next is answered.
func (t *trips) next() <-chan struct{} {
	if t.waiting == nil {
		t.waiting = make(chan struct{})
	}
	return t.waiting
}

// send notes that the requests that wait now are in what is sent.
func (t *trips) send() {
	if t.flying == nil {
		t.flying, t.waiting = t.waiting, nil
	}
}

// end lets those go that wait for what was sent; all of them, if nothing will be answered.
func (t *trips) end(all bool) {
	if t.flying != nil {
		close(t.flying)
		t.flying = nil
	}
	if all && t.waiting != nil {
		close(t.waiting)
		t.waiting = nil
	}
}
