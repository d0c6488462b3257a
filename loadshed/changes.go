package loadshed

import "sync"

// Reasons returns all reasons for a Change of an adaptive limit.
func Reasons() (all []Reason) {
	for r := range reasons[1:] {
		all = append(all, Reason(r+1))
	}
	return all
}

// changes remembers the last changes of a limit, and counts all by reason.
type changes struct {
	mu    sync.Mutex
	n     uint64
	last  [64]Change
	count [len(reasons)]uint64
}

// add takes what the methods of an adaptive limit return.
func (c *changes) add(change Change, changed bool) {
	if !changed {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last[c.n%uint64(len(c.last))] = change
	c.n++
	c.count[change.Reason]++
}

func (c *changes) since(since uint64) (list []Change, next uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := uint64(len(c.last))
	for i := max(since, c.n-min(c.n, size)); i < c.n; i++ {
		list = append(list, c.last[i%size])
	}
	return list, c.n
}

func (c *changes) stats() (last Change, count map[Reason]uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n > 0 {
		last = c.last[(c.n-1)%uint64(len(c.last))]
	}
	count = map[Reason]uint64{}
	for _, r := range Reasons() {
		count[r] = c.count[r]
	}
	return last, count
}
