package loadshed

import (
	"errors"
	"fmt"
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
	// permits to be returned, but at least 100 ms and at most 2 s.
	Timeout time.Duration
}

// A Plan is a checked PlanConfig, as [Concurrency] uses it. It never changes.
type Plan struct {
	limit     int // 0: adaptive, or none
	adaptive  bool
	law       law // if adaptive
	perClient int // 0: no limit
	queue     QueueConfig
	classes   Classes
	observe   bool
}

// NewPlan returns the Plan that c describes. The error names everything that is wrong.
func NewPlan(c PlanConfig) (*Plan, error) {
	p := &Plan{limit: c.Limit, perClient: c.PerClient, observe: c.Observe}
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
		p.adaptive = true
		if p.law, err = newLaw(*c.Adaptive); err != nil {
			bad("concurrency: %w", err)
		}
	}
	if c.PerClient < 0 || c.PerClient > MaxConcurrency {
		bad("concurrency per client is %d; use 1 to %d", c.PerClient, MaxConcurrency)
	}
	p.queue, err = c.Queue.resolve(p)
	errs = append(errs, err)
	if c.Classes != nil && !p.Limits() {
		bad("class is set without a concurrency limit; set concurrency as well")
	}
	p.classes, err = newClasses(c.Classes)
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return p, nil
}

// resolve returns the queue that q means under p. Size 0 is none.
func (q QueueConfig) resolve(p *Plan) (QueueConfig, error) {
	r := q
	var err error
	switch {
	case q.Size == NoQueue, q == (QueueConfig{}) && !p.Limits():
		r.Size = 0
	case !p.Limits():
		err = errors.New("queue is set without a concurrency limit; set concurrency as well")
	case q.Size == 0:
		r.Size = DefaultQueue
	}
	if r.Size < 0 || r.Size > MaxQueue {
		err = errors.Join(err, fmt.Errorf("queue is %d; use 1 to %d", q.Size, MaxQueue))
	}
	if q.Timeout < 0 || q.Timeout > MaxQueueTimeout {
		err = errors.Join(err, fmt.Errorf("queue timeout is %v; use more than 0, up to %v", q.Timeout, MaxQueueTimeout))
	}
	return r, err
}

// Limits reports whether the number of requests in flight is limited.
func (p *Plan) Limits() bool { return p.adaptive || p.limit > 0 }

// Most returns the limit, or the most that an adaptive one may be; 0 if there is none.
func (p *Plan) Most() (fixed, adaptive int) {
	if p.adaptive {
		return 0, p.law.Max
	}
	return p.limit, 0
}

// PerClient returns how many requests one client may have in flight, 0 for no limit.
func (p *Plan) PerClient() int { return p.perClient }

// QueueSize returns how many requests may wait, 0 for none.
func (p *Plan) QueueSize() int { return p.queue.Size }

// Classes returns the priority classes.
func (p *Plan) Classes() Classes { return p.classes }

// Highest reports whether a class is the highest of several.
func (p *Plan) Highest(class int) bool { return class == 0 && p.classes.Len() > 1 }

// Requested returns the class of a request that asks for one: 1 + its index; 0 means
// the default.
func (p *Plan) Requested(class uint8) int {
	if class == 0 {
		return p.classes.byDefault
	}
	return min(int(class), p.classes.Len()) - 1
}
