// Package virtual runs the script of package share in the process, at instants that its caller names: a store for
// simulations and tests, which need no server then.
package virtual

import (
	"encoding/json"
	"fmt"
	"strconv"

	lua "github.com/yuin/gopher-lua"

	"github.com/herdshield/shield/share"
)

// A Store is one unit in a store. It is not safe for concurrent use.
type Store struct {
	vm     *lua.LState
	script *lua.LFunction
	hashes map[string]*hash
	lists  map[string][]string
	now    int64
}

// A hash is a value of a key with fields, in the order of their first use, so that runs repeat.
type hash struct {
	fields map[string]string
	order  []string
	until  int64 // the Store forgets it then
}

// New returns an empty Store.
func New() *Store {
	s := &Store{vm: lua.NewState(lua.Options{SkipOpenLibs: true})}
	s.Flush()
	for _, open := range []lua.LGFunction{lua.OpenBase, lua.OpenTable, lua.OpenString, lua.OpenMath} {
		s.vm.Push(s.vm.NewFunction(open))
		s.vm.Call(0, 0)
	}
	s.vm.SetGlobal("redis", s.vm.SetFuncs(s.vm.NewTable(), map[string]lua.LGFunction{"call": s.call}))
	s.vm.SetGlobal("cjson", s.vm.SetFuncs(s.vm.NewTable(), map[string]lua.LGFunction{"decode": decode, "encode": encode}))
	var err error
	if s.script, err = s.vm.LoadString(share.Script); err != nil {
		panic(err) // the script is a part of the program
	}
	return s
}

// Flush has the Store forget everything.
func (s *Store) Flush() { s.hashes, s.lists = map[string]*hash{}, map[string][]string{} }

// Do runs the script at an instant of the store's clock, in milliseconds.
func (s *Store) Do(ms int64, ask share.LeaseAsk) (a share.LeaseAnswer) {
	s.now = ms
	text, err := json.Marshal(&ask)
	if err == nil {
		keys, args := s.vm.NewTable(), s.vm.NewTable()
		for _, k := range append([]string{"roster", "notes", "units"}, ask.Keys...) {
			keys.Append(lua.LString(k))
		}
		for _, arg := range []string{strconv.FormatInt(ms, 10), string(text), ask.Notes} {
			args.Append(lua.LString(arg))
		}
		s.vm.SetGlobal("KEYS", keys)
		s.vm.SetGlobal("ARGV", args)
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
	command, key := vm.CheckString(1), vm.CheckString(2)
	h := s.hashes[key]
	if h == nil || h.until > 0 && h.until <= s.now {
		delete(s.hashes, key)
		h = &hash{fields: map[string]string{}}
	}
	switch command {
	case "HGETALL":
		all := vm.NewTable()
		for _, name := range h.order {
			if value, ok := h.fields[name]; ok {
				all.Append(lua.LString(name))
				all.Append(lua.LString(value))
			}
		}
		vm.Push(all)
		return 1
	case "HSET":
		s.hashes[key] = h
		for i := 3; i < vm.GetTop(); i += 2 {
			name := vm.CheckString(i)
			if _, ok := h.fields[name]; !ok {
				h.order = append(h.order, name)
			}
			h.fields[name] = vm.CheckString(i + 1)
		}
	case "HDEL":
		delete(h.fields, vm.CheckString(3))
		for i, name := range h.order {
			if name == vm.CheckString(3) {
				h.order = append(h.order[:i:i], h.order[i+1:]...)
				break
			}
		}
	case "PEXPIRE":
		ms, _ := strconv.ParseInt(vm.CheckString(3), 10, 64)
		h.until = s.now + ms
	case "RPUSH":
		s.lists[key] = append(s.lists[key], vm.CheckString(3))
	case "LTRIM":
		list := s.lists[key]
		from, to := vm.CheckInt(3), vm.CheckInt(4)+1
		if from < 0 {
			from, to = max(0, len(list)+from), len(list)+to // the script has both from the end, or both from the beginning
		}
		s.lists[key] = list[min(from, len(list)):max(min(from, len(list)), min(to, len(list)))]
	case "LLEN":
		vm.Push(lua.LNumber(len(s.lists[key])))
		return 1
	case "LRANGE":
		list, out := s.lists[key], vm.NewTable()
		for i := vm.CheckInt(3); i <= vm.CheckInt(4) && i < len(list); i++ {
			out.Append(lua.LString(list[i]))
		}
		vm.Push(out)
		return 1
	default:
		vm.RaiseError("command %s is not known", command)
	}
	return 0
}

func decode(vm *lua.LState) int {
	var v any
	if err := json.Unmarshal([]byte(vm.CheckString(1)), &v); err != nil {
		vm.RaiseError("%v", err)
	}
	vm.Push(toLua(vm, v))
	return 1
}

func toLua(vm *lua.LState, v any) lua.LValue {
	switch v := v.(type) {
	case bool:
		return lua.LBool(v)
	case float64:
		return lua.LNumber(v)
	case string:
		return lua.LString(v)
	case []any:
		t := vm.CreateTable(len(v), 0)
		for _, x := range v {
			t.Append(toLua(vm, x))
		}
		return t
	case map[string]any:
		t := vm.CreateTable(0, len(v))
		for name, x := range v {
			t.RawSetString(name, toLua(vm, x))
		}
		return t
	}
	return lua.LNil
}

func encode(vm *lua.LState) int {
	text, err := json.Marshal(fromLua(vm.CheckAny(1)))
	if err != nil {
		vm.RaiseError("%v", err)
	}
	vm.Push(lua.LString(text))
	return 1
}

func fromLua(v lua.LValue) any {
	switch v := v.(type) {
	case lua.LBool:
		return bool(v)
	case lua.LNumber:
		return float64(v)
	case lua.LString:
		return string(v)
	case *lua.LTable:
		if n := v.Len(); n > 0 {
			list := make([]any, n)
			for i := range list {
				list[i] = fromLua(v.RawGetInt(i + 1))
			}
			return list
		}
		object := map[string]any{}
		v.ForEach(func(name, x lua.LValue) { object[lua.LVAsString(name)] = fromLua(x) })
		return object
	}
	return nil
}
