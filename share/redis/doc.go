// Package redis keeps in a Redis or Valkey server what replicas share: it is the store of
// package share. It needs version 5 or later: one server, a Cluster, or Sentinels.
package redis
