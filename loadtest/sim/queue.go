package sim

// slots hold values under numbers, which are used again.
type slots[T any] struct {
	of   []T
	free []int32 // numbers
}

func (s *slots[T]) put(v T) (number int32) {
	if n := len(s.free); n > 0 {
		number, s.free = s.free[n-1], s.free[:n-1]
		s.of[number] = v
		return number
	}
	s.of = append(s.of, v)
	return int32(len(s.of) - 1)
}

func (s *slots[T]) drop(number int32) { s.free = append(s.free, number) }

// An event is what happens next to a client or a request: 16 bytes, as there may be a million.
type event struct {
	at   int64  // nanoseconds since the epoch
	who  uint32 // index of a client, of a visit or of a replica, or one of the markers
	what int32  // 0: the client arrives; more: the replica's ticket, plus 1, of a rejection that is sent; less: see the kinds
}

// queue is a heap of events with four children per node: half as deep as a binary one, and
// the children of a node lie in one or two cache lines. The order of two events at the same
// instant depends on nothing but the order of calls.
type queue []event

func (q *queue) push(e event) {
	h := append(*q, e)
	*q = h
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 4
		if h[parent].at <= e.at {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = e
}

// pop removes and returns the earliest event. The queue must not be empty.
func (q *queue) pop() event {
	h := *q
	first := h[0]
	last := h[len(h)-1]
	h = h[:len(h)-1]
	*q = h
	if len(h) == 0 {
		return first
	}
	i := 0
	for {
		child := 4*i + 1
		if child >= len(h) {
			break
		}
		for c := child + 1; c < min(4*i+5, len(h)); c++ {
			if h[c].at < h[child].at {
				child = c
			}
		}
		if last.at <= h[child].at {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = last
	return first
}
