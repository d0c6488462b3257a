package loadshed

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Bounds and defaults of a PlanConfig.
const (
	// MaxConcurrency is the highest fixed limit, of the backend and of one client.
	MaxConcurrency = 1_000_000

	// NoQueue as the size of a queue means none.
	NoQueue = -1

	DefaultQueue = 64

	// MaxQueue and MaxQueueTimeout bound the queue.
	MaxQueue        = 10_000
	MaxQueueTimeout = time.Minute
)

// PlanConfig configures a [Concurrency].
type PlanConfig struct {
	Limit     int             // requests in flight, 1 to MaxConcurrency; 0: no limit, or that of Adaptive
	Adaptive  *AdaptiveConfig // finds the limit; nil: it is fixed
	PerClient int             // requests of one client in flight, 1 to MaxConcurrency; 0: no limit
	Queue     QueueConfig     // where requests over the limit wait
	Classes   []Class         // priority classes; nil: all requests are alike
	Observe   bool            // nothing is rejected, so requests over the limit don't wait either
}

// QueueConfig bounds a queue.
type QueueConfig struct {
	// Size is how many requests can wait: 1 to MaxQueue. 0 means DefaultQueue, and NoQueue means none.
	Size int

	// Timeout is how long a request can wait, at most MaxQueueTimeout. 0 means as long as it takes for 20
	// permits to be returned, but at least 100 ms; if fewer than ten are returned per second, less: see queuePermits.
	Timeout time.Duration
}

// A Plan is a checked PlanConfig with its defaults, as [Concurrency] uses it. It never changes. Its Queue.Size is 0 for none,
// and its Classes are the highest first, with default, and unpaid as the last.
type Plan struct {
	PlanConfig
	law       law // of Adaptive
	byDefault int // the default class
}

// NewPlan returns the Plan that c describes. The error names everything that is wrong.
func NewPlan(c PlanConfig) (*Plan, error) {
	p := &Plan{PlanConfig: c}
	var errs []error
	var err error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Limit < 0 || c.Limit > MaxConcurrency {
		bad("concurrency is %d; use 1 to %d", c.Limit, MaxConcurrency)
	}
	if c.Adaptive != nil {
		if c.Limit != 0 {
			bad("concurrency is %d and adaptive; use only one of them", c.Limit)
		}
		if p.law, err = newLaw(*c.Adaptive); err != nil {
			bad("concurrency: %w", err)
		}
	}
	if c.PerClient < 0 || c.PerClient > MaxConcurrency {
		bad("concurrency per client is %d; use 1 to %d", c.PerClient, MaxConcurrency)
	}
	q := &p.Queue
	switch {
	case q.Size == NoQueue, c.Queue == (QueueConfig{}) && !p.Limits():
		q.Size = 0
	case !p.Limits():
		bad("queue is set without a concurrency limit; set concurrency as well")
	case q.Size == 0:
		q.Size = DefaultQueue
	}
	if q.Size < 0 || q.Size > MaxQueue {
		bad("queue is %d; use 1 to %d", q.Size, MaxQueue)
	}
	if q.Timeout < 0 || q.Timeout > MaxQueueTimeout {
		bad("queue timeout is %v; use more than 0, up to %v", q.Timeout, MaxQueueTimeout)
	}
	if c.Classes != nil && !p.Limits() {
		bad("class is set without a concurrency limit; set concurrency as well")
	}
	p.Classes, p.byDefault, err = newClasses(c.Classes)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	return p, nil
}

// Limits reports whether the number of requests in flight is limited.
func (p *Plan) Limits() bool { return p.Adaptive != nil || p.Limit > 0 }

// Most returns the limit, or the most that an adaptive one may be; 0 if there is none.
func (p *Plan) Most() (fixed, adaptive int) { return p.Limit, p.law.Max }

// Highest reports whether a class is the highest of several.
func (p *Plan) Highest(class int) bool { return class == 0 && len(p.Classes) > 1 }

// Requested returns the class of a request that asks for one: 1 + its index; 0 means
// the default.
func (p *Plan) Requested(class uint8) int {
	if class == 0 {
		return p.byDefault
	}
	return min(int(class), len(p.Classes)) - 1
}

// ClassNamed returns the class of that name and true, or the default class and false if there
// is none, or it is unpaid. The name may come from any client.
func (p *Plan) ClassNamed(name string) (int, bool) {
	i := slices.IndexFunc(p.Classes, func(c Class) bool { return c.Name == name && name != unpaid })
	if i < 0 {
		return p.byDefault, false
	}
	return i, true
}
