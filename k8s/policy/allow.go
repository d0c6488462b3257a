package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// maxAllow bounds the networks of one object. Ours: the published lists of the large
// clouds have fewer.
const maxAllow = 10_000

// Allows reports whether the limits do not count a client's address. It is a binary search,
// and does not allocate. Allow must be in the order that parsing makes.
func (p *Ingress) Allows(a netip.Addr) bool { return within(p.Allow, a) }

// within reports whether an address is in one of the networks of a list, in the order that
// parsing makes.
func within(list []netip.Prefix, a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	// The networks do not overlap, so only the last one that begins at or before a can
	// contain it.
	i, found := slices.BinarySearchFunc(list, a, func(n netip.Prefix, a netip.Addr) int { return n.Addr().Compare(a) })
	return found || i > 0 && list[i-1].Contains(a)
}

// parsePrefixes parses addresses and networks, separated by commas. It returns them masked
// and sorted, without those that are within others.
func parsePrefixes(s string) ([]netip.Prefix, error) {
	if strings.Count(s, ",") >= maxAllow {
		return nil, fmt.Errorf("it has %d addresses; use at most %d", strings.Count(s, ",")+1, maxAllow)
	}
	var list []netip.Prefix
	for item := range strings.SplitSeq(s, ",") {
		p, ok := parsePrefix(strings.TrimSpace(item))
		if !ok {
			return nil, fmt.Errorf("%q is not an address; use addresses or networks like 10.0.0.0/8, separated by commas", clip(strings.TrimSpace(item)))
		}
		list = append(list, p)
	}
	// Of two with one beginning the wider comes first.
	slices.SortFunc(list, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	kept := list[:1]
	for _, p := range list[1:] {
		if !kept[len(kept)-1].Overlaps(p) {
			kept = append(kept, p)
		}
	}
	return kept, nil
}

func parsePrefix(s string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, false
	}
	if p.Addr().Is4In6() && p.Bits() >= 96 { // like the clients' addresses
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), true
}
