package main

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// A bounded flag takes values in a range, which its usage names.
type bounded[T cmp.Ordered] struct {
	pflag.Value
	is          *T
	least, most T
}

func (b bounded[T]) Set(text string) error {
	if err := b.Value.Set(text); err != nil {
		return err
	}
	return between("the value", *b.is, b.least, b.most)
}

func between[T cmp.Ordered](name string, is, least, most T) error {
	if is >= least && is <= most { // NaN is not
		return nil
	}
	return fmt.Errorf("%s is %v; use %v to %v", name, is, least, most)
}

// Type is none that pflag knows: errors then say what the usage says.
func (b bounded[T]) Type() string {
	if b.Value.Type() == "duration" {
		return "time"
	}
	return "number"
}

// bound gives a flag a range.
func bound[T cmp.Ordered](f *pflag.FlagSet, name string, is *T, least, most T) {
	flag := f.Lookup(name)
	flag.Value = bounded[T]{flag.Value, is, least, most}
	flag.Usage += fmt.Sprintf(" (%v to %v)", least, most)
	if flag.DefValue == "0s" {
		flag.DefValue = "" // which is not shown
	}
}

func whole(f *pflag.FlagSet, is *int, name string, usually, least, most int, usage string) {
	f.IntVar(is, name, usually, usage)
	bound(f, name, is, least, most)
}

func lasting(f *pflag.FlagSet, is *time.Duration, name string, usually, least, most time.Duration, usage string) {
	f.DurationVar(is, name, usually, usage)
	bound(f, name, is, least, most)
}

// A perSecond is a flag for a rate, as 50, 50/s, 600/m or 5000/h.
type perSecond struct {
	rate        *float64
	least, most float64
}

func rated(f *pflag.FlagSet, is *float64, name string, usually, least, most float64, usage string) {
	*is = usually
	f.Var(perSecond{is, least, most}, name, fmt.Sprintf("%s, such as 30/s, 600/m, or 5000/h (%g/s to %g/s)", usage, least, most))
}

func (p perSecond) String() string {
	if p.rate == nil || *p.rate == 0 {
		return "0"
	}
	return strconv.FormatFloat(*p.rate, 'g', 6, 64) + "/s"
}

func (perSecond) Type() string { return "rate" }

func (p perSecond) Set(text string) error {
	number, per, divided := strings.Cut(text, "/")
	seconds, known := map[string]float64{"": 1, "s": 1, "m": 60, "h": 3600}[per]
	rate, err := strconv.ParseFloat(number, 64)
	if err != nil || !known || divided && per == "" {
		return fmt.Errorf("%q is not a rate", text)
	}
	*p.rate = rate / seconds
	return between("the rate", *p.rate, p.least, p.most)
}
