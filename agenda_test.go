package shield

import "time"

// An agenda is what is to come, in order of time; what comes at one instant, in the order in
// which it was planned. It is a heap with four children for each node.
type agenda[T any] struct {
	heap    []planned[T]
	planned int
}

type planned[T any] struct {
	at    time.Duration
	order int
	what  T
}

func (p *planned[T]) before(q *planned[T]) bool {
	return p.at < q.at || p.at == q.at && p.order < q.order
}

func (a *agenda[T]) len() int { return len(a.heap) }

// next is when the next comes. There must be one.
func (a *agenda[T]) next() time.Duration { return a.heap[0].at }

func (a *agenda[T]) push(at time.Duration, what T) {
	a.planned++
	p := planned[T]{at, a.planned, what}
	a.heap = append(a.heap, p)
	i := len(a.heap) - 1
	for ; i > 0 && p.before(&a.heap[(i-1)/4]); i = (i - 1) / 4 {
		a.heap[i] = a.heap[(i-1)/4]
	}
	a.heap[i] = p
}

// pop returns the next. There must be one.
func (a *agenda[T]) pop() (at time.Duration, what T) {
	first, end := a.heap[0], len(a.heap)-1
	last := a.heap[end]
	a.heap[end] = planned[T]{}
	a.heap = a.heap[:end]
	for i := 0; end > 0; {
		child := 4*i + 1
		for c := child + 1; c < min(4*i+5, end); c++ {
			if a.heap[c].before(&a.heap[child]) {
				child = c
			}
		}
		if child >= end || !a.heap[child].before(&last) {
			a.heap[i] = last
			break
		}
		a.heap[i] = a.heap[child]
		i = child
	}
	return first.at, first.what
}
