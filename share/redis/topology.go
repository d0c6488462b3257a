package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	redigo "github.com/gomodule/redigo/redis"
)

// A topology says where keys are.
type topology struct {
	master string      // of all keys; "": it depends on the slot
	slots  []slotRange // of a Cluster, by last
	tell   []string    // servers that know of changes, those that have answered before first
}

// A slotRange is some slots of a Cluster, and the address of their master.
type slotRange struct {
	first, last int
	address     string
}

// of returns the address of the server that has a key.
func (t topology) of(key string) (address string, ok bool) {
	if t.master != "" {
		return t.master, true
	}
	n := slot(key)
	i, _ := slices.BinarySearchFunc(t.slots, n, func(r slotRange, n int) int { return r.last - n })
	if i == len(t.slots) || n < t.slots[i].first {
		return "", false
	}
	return t.slots[i].address, true
}

// slot returns that of a key in a Cluster: CRC-16/XMODEM of its tag, as in the cluster
// specification of Redis.
func slot(key string) int {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			carry := crc >> 15
			crc = crc<<1 ^ carry*0x1021
		}
	}
	return int(crc % 16384)
}

// redirection returns the node to which a node of a Cluster refers a call, which has not
// run, and whether it has to be asked for a slot that is on its way there.
func redirection(err error, from string) (address string, ask, ok bool) {
	text, _ := replied(err)
	words := strings.Fields(text)
	if len(words) < 3 || words[0] != "MOVED" && words[0] != "ASK" {
		return "", false, false
	}
	colon := strings.LastIndexByte(words[2], ':')
	if colon < 0 {
		return "", false, false
	}
	address, ok = endpoint(words[2][:colon], words[2][colon+1:], from)
	return address, words[0] == "ASK", ok
}

// endpoint returns the address of a node as another tells it: an empty host is that of the
// one that was asked, and "?" is one that it does not know.
func endpoint(host, port, from string) (address string, ok bool) {
	if host == "?" {
		return "", false
	}
	if host == "" {
		host, _, _ = net.SplitHostPort(from)
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), port), true // IPv6 comes with brackets, or without
}

// ask asks one server for the topology.
func (d *driver) ask(ctx context.Context, address string) (topology, error) {
	if d.mode == "sentinel" {
		return d.askSentinel(ctx, address)
	}
	reply, err := redigo.Values(d.doAt(ctx, address, aServer, false, "CLUSTER", "SLOTS"))
	if err != nil {
		return topology{}, err
	}
	return readSlots(reply, address)
}

// readSlots reads the reply of a node to CLUSTER SLOTS.
func readSlots(reply []any, from string) (t topology, err error) {
	t.tell = []string{from}
	for _, entry := range reply {
		var r slotRange
		nodes, err := redigo.Values(entry, nil)
		if err == nil {
			nodes, err = redigo.Scan(nodes, &r.first, &r.last)
		}
		if err != nil {
			return topology{}, fmt.Errorf("the answer to CLUSTER SLOTS is not understood: %w", err)
		}
		for i, node := range nodes {
			address, ok := readNode(node, from)
			if !ok {
				continue
			}
			if i == 0 { // replicas follow
				r.address = address
				t.slots = append(t.slots, r)
			}
			if !slices.Contains(t.tell, address) {
				t.tell = append(t.tell, address)
			}
		}
	}
	if len(t.slots) == 0 {
		return topology{}, errors.New("the Cluster has no node with slots")
	}
	slices.SortFunc(t.slots, func(a, b slotRange) int { return a.last - b.last })
	return t, nil
}

func readNode(node any, from string) (address string, ok bool) {
	fields, err := redigo.Values(node, nil)
	if err != nil || len(fields) < 2 {
		return "", false
	}
	host, err := redigo.String(fields[0], nil)
	if err != nil && !errors.Is(err, redigo.ErrNil) {
		return "", false
	}
	port, err := redigo.Int(fields[1], nil)
	if err != nil {
		return "", false
	}
	return endpoint(host, strconv.Itoa(port), from)
}

// askSentinel asks a Sentinel for the master, and for the other Sentinels.
func (d *driver) askSentinel(ctx context.Context, address string) (t topology, err error) {
	name := d.options.Sentinel
	others, err := redigo.Values(d.doAt(ctx, address, aSentinel, false, "SENTINEL", "SENTINELS", name))
	if err != nil {
		return topology{}, err
	}
	master, err := redigo.Strings(d.doAt(ctx, address, aSentinel, false, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", name))
	if err != nil {
		return topology{}, err
	}
	if len(master) != 2 {
		return topology{}, fmt.Errorf("a Sentinel names %q as the master; want a host and a port", master)
	}
	t.master, t.tell = net.JoinHostPort(master[0], master[1]), []string{address}
	for _, other := range others {
		if facts, err := redigo.StringMap(other, nil); err == nil && facts["ip"] != "" {
			t.tell = append(t.tell, net.JoinHostPort(facts["ip"], facts["port"]))
		}
	}
	return t, nil
}
