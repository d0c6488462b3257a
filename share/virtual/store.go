// Package virtual runs the script of package share in the process, at instants that its caller names: a store for
// simulations and tests, which need no server then.
package virtual

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	luajson "github.com/alicebob/gopher-json"
	lua "github.com/yuin/gopher-lua"

	"github.com/herdshield/shield/share"
)

// A Store is one unit in a store. It is not safe for concurrent use.
type Store struct {
	vm     *lua.LState
	script *lua.LFunction
	values map[string]*value
	now    int64
}

// A value is that of a key: a list, or a hash, of names with values behind them, in the order of their first use, so that runs
// repeat.
type value struct {
	list  []string
	until int64 // the Store forgets it then; 0: never
}

// New returns an empty Store.
func New() *Store {
	s := &Store{vm: lua.NewState()}
	s.Flush()
	s.vm.SetGlobal("redis", s.vm.SetFuncs(s.vm.NewTable(), map[string]lua.LGFunction{"call": s.call}))
	luajson.Loader(s.vm)
	s.vm.SetGlobal("cjson", s.vm.Get(-1))
	s.vm.Pop(1)
	var err error
	if s.script, err = s.vm.LoadString(share.Script); err != nil {
		panic(err) // the script is a part of the program
	}
	return s
}

// Flush has the Store forget everything.
func (s *Store) Flush() { s.values = map[string]*value{} }

// Do runs the script at an instant of the store's clock, in milliseconds.
func (s *Store) Do(ms int64, ask share.LeaseAsk) (a share.LeaseAnswer) {
	s.now = ms
	text, err := json.Marshal(&ask)
	if err == nil {
		s.vm.SetGlobal("KEYS", s.table(append([]string{"roster", "notes", "units"}, ask.Keys...)))
		s.vm.SetGlobal("ARGV", s.table([]string{strconv.FormatInt(ms, 10), string(text), ask.Notes}))
		err = s.vm.CallByParam(lua.P{Fn: s.script, NRet: 1, Protect: true})
	}
	if err == nil {
		reply := s.vm.ToString(-1)
		s.vm.Pop(1)
		err = json.Unmarshal([]byte(reply), &a)
	}
	if err != nil {
		panic(fmt.Sprintf("%v: %s", err, text)) // the script is a part of the program
	}
	return a
}

// call does the commands that the script uses.
func (s *Store) call(vm *lua.LState) int {
	command, key, text, number := vm.CheckString(1), vm.CheckString(2), vm.ToString, vm.ToInt
	v := s.values[key]
	if v == nil || v.until > 0 && v.until <= s.now {
		v = new(value)
		s.values[key] = v
	}
	at := func(name string) int {
		i := 0
		for i < len(v.list) && v.list[i] != name {
			i += 2
		}
		return i
	}
	switch command {
	case "HGETALL":
		vm.Push(s.table(v.list))
		return 1
	case "HSET":
		for i := 3; i < vm.GetTop(); i += 2 {
			if n := at(text(i)); n < len(v.list) {
				v.list[n+1] = text(i + 1)
			} else {
				v.list = append(v.list, text(i), text(i+1))
			}
		}
	case "HDEL":
		if n := at(text(3)); n < len(v.list) {
			v.list = slices.Delete(v.list, n, n+2)
		}
	case "PEXPIRE":
		ms, _ := strconv.ParseInt(text(3), 10, 64)
		v.until = s.now + ms
	case "RPUSH":
		v.list = append(v.list, text(3))
	case "LTRIM":
		from, to := number(3), number(4)+1
		if from < 0 {
			from, to = max(0, len(v.list)+from), len(v.list)+to // the script has both from the end, or both from the beginning
		}
		v.list = v.list[min(from, len(v.list)):max(min(from, len(v.list)), min(to, len(v.list)))]
	case "LLEN":
		vm.Push(lua.LNumber(len(v.list)))
		return 1
	case "LRANGE":
		from := min(number(3), len(v.list))
		vm.Push(s.table(v.list[from:max(from, min(number(4)+1, len(v.list)))]))
		return 1
	default:
		vm.RaiseError("command %s is not known", command)
	}
	return 0
}

func (s *Store) table(list []string) *lua.LTable {
	t := s.vm.CreateTable(len(list), 0)
	for _, one := range list {
		t.Append(lua.LString(one))
	}
	return t
}
