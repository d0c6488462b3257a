package caddymodule

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/limiter"
)

// A unit says how a backend or a zone is defined, and under which secret. Replicas share what
// has the same name and unit. In a rolling change of the config there are two for a while:
// they mix nothing, and operators see both.

func (s *shieldEntry) unit() string {
	c, text := s.config(), ""
	if c.Capacity.Rate > 0 {
		text += fmt.Sprintf("capacity %s, ", rateOf(rateStatus(c.Capacity, limiter.NewCapacity)))
	}
	if c.Concurrency > 0 {
		text += fmt.Sprintf("concurrency %d, ", c.Concurrency)
	}
	_, longest := s.guard().Answers().Bounds()
	return text + fmt.Sprintf("max %v, secret %s", longest, fingerprint(c.Secret))
}

func (z *zoneEntry) unit(store *storeConfig) string {
	return fmt.Sprintf("rate %s, cost %d, secret %s", rateOf(rateStatus(z.config().Limit, limiter.New)), max(1, z.config().Cost), fingerprint(store.Secret))
}

func rateOf(s adminapi.RateStatus) string {
	return fmt.Sprintf("%v per %s burst %d", s.Rate, s.Per, s.Burst)
}

// fingerprint tells secrets apart, and does not tell what they are.
func fingerprint(secret []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("shield: fingerprint"))
	return hex.EncodeToString(mac.Sum(nil)[:4])
}
