package caddymodule

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/herdshield/shield/caddymodule/store"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/oncall"
	"github.com/herdshield/shield/share/redis"
)

// desk serves what one app at a time shares.
var desk store.Desk

// duties returns what is to be served of an app. What a newer config does not share, whose requests come already, has no
// link.
func (a *App) duties(now time.Duration) map[store.Duty]bool {
	due, all := map[store.Duty]bool{}, a.roster()
	for _, s := range all.shields {
		if !s.force.Load().config.Shared {
			continue
		}
		if l := s.guard().Link(now); l != nil {
			due[store.Duty{Store: a.shares.Connection, Link: l, Kind: redis.Backend, Name: s.Name, Unit: s.unit()}] = true
		}
	}
	for _, z := range all.zones {
		if !z.config().Shared {
			continue
		}
		if l := z.of.guard().Zones(now)[z.index]; l != nil {
			due[store.Duty{Store: a.shares.Connection, Link: l, Kind: redis.Zone, Name: z.record.shown, Unit: z.unit(a.store.Secret)}] = true
		}
	}
	return due
}

func (h *Handler) unit() string {
	c, text := &h.force.Load().config, ""
	if c.Capacity.Rate > 0 {
		text += fmt.Sprintf("capacity %s, ", rateOf(rateStatus(c.Capacity, limiter.NewCapacity)))
	}
	if c.Concurrency > 0 {
		text += fmt.Sprintf("concurrency %d, ", c.Concurrency)
	}
	_, longest := h.guard().Responses().Bounds()
	return text + fmt.Sprintf("max %v, secret %s", longest, fingerprint(c.Secret))
}

func (z *handlerZone) unit(secret []byte) string {
	return fmt.Sprintf("rate %s, cost %d, secret %s", rateOf(rateStatus(z.config().Limit, limiter.New)), max(1, z.config().Cost), fingerprint(secret))
}

func rateOf(s *oncall.RateLimit) string {
	return fmt.Sprintf("%v per %s burst %d", s.Rate, s.Per, s.Burst)
}

// fingerprint tells secrets apart, and does not tell what they are.
func fingerprint(secret []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("shield: fingerprint"))
	return hex.EncodeToString(mac.Sum(nil)[:4])
}
