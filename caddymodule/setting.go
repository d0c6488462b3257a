package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/oncall"
)

// apply changes the configuration of h. It reads a value as the config's own parser does. The error says
// why that cannot be.
func (o *override) apply(h *Handler, c *shield.Config) error {
	what, shared := fmt.Sprintf("%s of shield %q", o.Setting, h.Name), c.Shared
	var rate *limiter.Config
	zone, isZone := o.zone()
	switch {
	case o.Kind == overrideMode:
		c.Observe = o.Value == modeObserve
		return nil
	case isZone:
		i := slices.IndexFunc(c.Zones, func(z shield.Zone) bool { return z.Name == zone })
		what, shared, rate = fmt.Sprintf("zone %q", zone), c.Zones[i].Shared, &c.Zones[i].Limit
	case o.Setting == "capacity":
		rate = &c.Capacity
	case o.Setting == "concurrency":
		n, err := strconv.Atoi(o.Value)
		switch {
		case err != nil || n < 1 || n > loadshed.MaxConcurrency:
			return fmt.Errorf("concurrency is %.40q; want 1 to %d", o.Value, loadshed.MaxConcurrency)
		case c.Concurrency == 0 && c.Adaptive == nil:
			return fmt.Errorf("shield %q has no concurrency", h.Name)
		case c.Adaptive != nil && c.Queue == loadshed.QueueConfig{}: // a fixed limit would have none
			c.Queue.Size = loadshed.DefaultQueue
		}
		c.Concurrency, c.Adaptive = n, nil
	default:
		return fmt.Errorf("setting is %.100q; want capacity, concurrency, or the name of a zone and rate", o.Setting)
	}
	if rate != nil {
		limit, err := readRate(o.Value)
		switch {
		case err != nil:
			return err
		case *rate == limiter.Config{}:
			return fmt.Errorf("shield %q has no capacity", h.Name)
		}
		limit.Burst = cmp.Or(limit.Burst, rate.Burst) // one that was the default for the old rate is none for the new one
		*rate = limit
	}
	if shared { // a concurrency that was adaptive would share the rest with no other any more
		return fmt.Errorf("%s is shared with other replicas, which would have another one; want the config of all of them changed", what)
	}
	return nil
}

// readRate reads a rate as in a Caddyfile: 300/s, or 300/s burst 50.
func readRate(text string) (limiter.Config, error) {
	var r Rate
	d := caddyfile.NewTestDispenser("")
	if err := r.read(d, "rate", strings.Fields(text)); err != nil {
		words, _, _ := strings.Cut(err.Error(), ", at ")
		return limiter.Config{}, errors.New(words)
	}
	f := new(faults)
	c := r.config(f)
	return c, errors.Join(f.errs...)
}

// rateText writes a rate as readRate reads it.
func rateText(c limiter.Config) string {
	rate, unit := c.Rate, map[time.Duration]string{0: "s", time.Second: "s", time.Minute: "m", time.Hour: "h"}[c.Per]
	if unit == "" {
		rate, unit = c.Rate/c.Per.Seconds(), "s"
	}
	text := strconv.FormatFloat(rate, 'f', -1, 64) + "/" + unit
	if c.Burst > 0 {
		text += fmt.Sprintf(" burst %d", c.Burst)
	}
	return text
}

// settings returns what can be set of a shield, and is not shared with other replicas.
func (s *shieldReading) settings() (list []oncall.Setting) {
	if s.live {
		return nil // the ingress controller sets it
	}
	c := &s.is.config
	if c.Capacity.Rate > 0 && !c.Shared {
		list = append(list, oncall.Setting{Setting: "capacity", Value: rateText(c.Capacity)})
	}
	if (c.Adaptive != nil || c.Concurrency > 0) && !c.Shared {
		list = append(list, oncall.Setting{Setting: "concurrency", Value: strconv.Itoa(s.is.guard.Limit())})
	}
	for _, z := range c.Zones {
		if !z.Shared {
			list = append(list, oncall.Setting{Setting: z.Name + " rate", Value: rateText(z.Limit)})
		}
	}
	return list
}
