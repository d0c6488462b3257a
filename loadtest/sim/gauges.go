package sim

import "time"

// returns counts requests that are not a client's first per 100 ms, from a second after
// the herd has begun.
type returns struct {
	bin     int64
	n, most int
}

// count counts a request that comes at since, the time since the last moment at
// which clients of the herd begin.
func (r *returns) count(since int64) {
	if since < int64(time.Second) {
		return
	}
	if bin := since / int64(100*time.Millisecond); bin != r.bin {
		r.bin, r.n = bin, 0
	}
	r.n++
	r.most = max(r.most, r.n)
}

// series is the run in Bins from its first moment.
type series []Bin

// at returns the given bin.
func (s *series) at(bin int64) *Bin {
	for int64(len(*s)) <= bin {
		*s = append(*s, Bin{})
	}
	return &(*s)[bin]
}

// binOf returns the bin of an instant: one that is not shown if there is no Series.
func (r *run) binOf(at int64) *Bin {
	if r.Bin == 0 {
		return &r.unseen
	}
	return r.series.at(at / int64(r.Bin))
}

// door returns the bin's Door for the herd or the strangers.
func (b *Bin) door(herd bool) *Door {
	if herd {
		return &b.Herd
	}
	return &b.Strangers
}
