package redis

import (
	"fmt"

	"github.com/herdshield/shield/share"
)

// takeKeys are the keys of takeScript, as KEYS.
func takeKeys(tag string, keys []share.KeyTake) []string {
	list := make([]string, 2, 2+len(keys))
	list[0], list[1] = tag+":lives", tag+":news"
	for _, k := range keys {
		list = append(list, fmt.Sprint(tag, ":", k.Key))
	}
	return list
}
