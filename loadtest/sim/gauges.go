package sim

import "time"

// bins counts requests per 100 ms, from a second after the herd has begun.
type bins struct {
	bin           int64
	all, returns  int
	most, mostRet int
}

// count counts a request that comes at since, the time since the last moment at
// which clients of the herd begin.
func (b *bins) count(since int64, isReturn bool) {
	if since < int64(time.Second) {
		return
	}
	if bin := since / int64(100*time.Millisecond); bin != b.bin {
		b.bin, b.all, b.returns = bin, 0, 0
	}
	b.all++
	b.most = max(b.most, b.all)
	if isReturn {
		b.returns++
		b.mostRet = max(b.mostRet, b.returns)
	}
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
