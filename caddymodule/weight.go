package caddymodule

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield/loadshed"
)

// handlerWeight is what requests need of a MatchedWeight.
type handlerWeight struct {
	permits     int // 0: those that the placeholder has
	placeholder string
	matchers    caddyhttp.MatcherSets // nil: for all
}

// read reads the weight, and reports whether it is one.
func (w *handlerWeight) read(text string) bool {
	w.permits, _ = strconv.Atoi(text)
	name, begins := strings.CutPrefix(text, "{")
	name, ends := strings.CutSuffix(name, "}")
	if begins && ends && known(name) {
		w.placeholder = name
		return true
	}
	return w.permits >= 1 && w.permits <= loadshed.MaxConcurrency
}

func (m matchedWeights) check(f *faults) {
	others := 0
	for _, w := range m {
		if w == nil {
			f.addf("weights has null; want a weight")
			continue
		}
		if !new(handlerWeight).read(w.Weight) {
			f.addf("weight is %q; want a whole number of permits, 1 to %d, or a placeholder, like {http.request.header.X-Weight}", w.Weight, loadshed.MaxConcurrency)
		}
		if len(w.MatcherSetsRaw) == 0 {
			others++
		}
		if others > 1 {
			f.addf("weight %s is the second without match; want match, or one such weight", w.Weight)
		}
		f.checkMatchers("weight: match", w.MatcherSetsRaw)
	}
}

// provisionWeights loads matchers.
func (h *Handler) provisionWeights(ctx caddy.Context) error {
	if h.Concurrency == nil {
		return nil
	}
	var others []handlerWeight
	for _, w := range h.Concurrency.Weights {
		var is handlerWeight
		is.read(w.Weight)
		matchers, err := loadMatchers(ctx, w)
		if err != nil {
			return err
		}
		if is.matchers = matchers; len(matchers) == 0 {
			others = append(others, is)
		} else {
			h.weights = append(h.weights, is)
		}
	}
	h.weights = append(h.weights, others...)
	return nil
}

// weigh returns how many permits r takes, 0 for one.
func (h *Handler) weigh(r *http.Request) (int, error) {
	for i := range h.weights {
		w := &h.weights[i]
		switch matched, err := w.matchers.AnyMatchWithError(r); {
		case err != nil:
			return 0, err
		case matched && w.placeholder == "":
			return w.permits, nil
		case matched:
			n, _ := strconv.ParseUint(value(w.placeholder, r), 10, 31) // 0 of what is no number, and the most of what is more
			return int(n), nil
		}
	}
	return 0, nil
}
