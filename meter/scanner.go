package meter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// A scanner finds the last numbers at some paths of JSON values, one after the other, from parts of any length.
// It tells strings from the rest: a text that looks like JSON, as a client may have a model write it, is not
// taken for any. What arrays hold is not searched, except that a value may be an array of such values, as
// Gemini sends them. It does not check what it passes by: of what is not JSON it finds anything or nothing.
type scanner struct {
	wanted paths
	values []float64 // by the index in wanted; -1: there was none

	state  state
	arrays int    // that are open around the outermost object
	opened []int  // the length of the path to each open object, after that of the outermost value; it has room for the paths
	skips  int    // objects and arrays that are open where no path leads
	path   []byte // to the innermost object; then a key, as it is written, or a number
	long   bool   // there is more than has room in path
	index  int    // of the value behind the key; -1: nobody wants it
}

// paths are wanted numbers in JSON: the index of each by its keys, with dots between.
type paths map[string]int

type state uint8

const (
	between state = iota // tokens
	inString
	escaped // the next byte of a string
	inNumber
	lost // this is no JSON
)

func newScanner(wanted paths) scanner {
	depth, values, room := 0, 0, 0
	for path, index := range wanted {
		depth, values = max(depth, strings.Count(path, ".")+1), max(values, index+1)
		room = max(room, 6*len(path)+32) // a character may be written as \u0000; what is longer is none of them
	}
	return scanner{wanted: wanted, values: slices.Repeat([]float64{-1}, values), opened: make([]int, 1, depth+1), path: make([]byte, 0, room), index: -1}
}

// restart begins another value, whatever is missing of the one before.
func (s *scanner) restart() {
	s.state, s.arrays, s.opened, s.skips, s.index = between, 0, s.opened[:1], 0, -1
}

// isOver reports whether a value has ended, and no other has begun.
func (s *scanner) isOver() bool { return s.state == between && len(s.opened) == 1 && s.arrays == 0 }

// scan reads a part of the values.
func (s *scanner) scan(p []byte) {
	for i := 0; i < len(p); i++ {
		c := p[i]
		switch s.state {
		case lost:
			return
		case escaped:
			s.state = inString
			s.add(c)
			continue
		case inString:
			for (s.skips > 0 || s.long) && c != '"' && c != '\\' && i+1 < len(p) { // nobody wants it
				i++
				c = p[i]
			}
			switch c {
			case '"':
				s.state = between
				continue
			case '\\':
				s.state = escaped
			}
			s.add(c)
			continue
		case inNumber:
			if strings.IndexByte(digits, c) >= 0 {
				s.add(c)
				continue
			}
			if s.state = between; s.long {
				break
			}
			if v, ok := number(string(s.path[s.here():])); ok {
				s.values[s.index] = v
			}
		}
		switch outermost := len(s.opened) == 1; {
		case outermost && s.arrays == 0 && c != '{' && c != '[':
			if c > ' ' {
				s.state = lost
			}
		case c == '"':
			s.state, s.long, s.path = inString, false, s.path[:s.here()]
			if len(s.opened) > 2 {
				s.add('.')
			}
		case s.skips > 0:
			switch c {
			case '{', '[':
				s.skips++
			case '}', ']':
				s.skips--
			}
		case c == ':':
			s.index = s.find()
		case c == '{' && outermost:
			s.opened = append(s.opened, 0)
		case c == '{' && len(s.opened) < cap(s.opened):
			s.opened = append(s.opened, len(s.path))
		case c == '[' && outermost:
			s.arrays++
		case c == '{', c == '[':
			s.skips = 1
		case c == '}' && !outermost:
			s.opened, s.index = s.opened[:len(s.opened)-1], -1
		case c == ']' && outermost:
			s.arrays--
		case s.index >= 0 && (c == '-' || c >= '0' && c <= '9'):
			s.state, s.long, s.path = inNumber, false, append(s.path[:s.here()], c)
		}
	}
}

// here returns the length of the path to the innermost object.
func (s *scanner) here() int { return s.opened[len(s.opened)-1] }

// add adds to the key or number, as far as somebody may want it.
func (s *scanner) add(c byte) {
	if s.long = s.long || len(s.path) == cap(s.path); !s.long {
		s.path = append(s.path, c)
	}
}

// find returns the index for the path, which has got another key.
func (s *scanner) find() int {
	if key := s.path[s.here():]; bytes.IndexByte(key, '\\') >= 0 {
		var plain string
		if json.Unmarshal(fmt.Appendf(nil, "\"%s\"", key), &plain) != nil {
			return -1
		}
		s.path = append(s.path[:s.here()], plain...)
	}
	if index, ok := s.wanted[string(s.path)]; ok {
		return index
	}
	return -1
}
