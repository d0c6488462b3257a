-- One replica's exchange about one backend: share.Model.Plan. The state has no more than a
-- dozen numbers; slots and log are keys of their own, and so are places.
local stateKey, membersKey, slotsKey, logKey, placesKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local fields = { 'born', 'level', 'at', 'told', 'first', 'cursor', 'last', 'issued', 'served', 'servedAt', 'least' }

local function readState()
	local state, values = {}, redis.call('HMGET', stateKey, unpack(fields))
	for i, field in ipairs(fields) do state[field] = number(values[i]) end
	return state
end

local function writeState(state)
	local args = {}
	for i, field in ipairs(fields) do
		args[2 * i - 1], args[2 * i] = field, exact(state[field])
	end
	redis.call('HSET', stateKey, unpack(args))
	keep(stateKey)
end

local state, members, name = readState(), readMembers(membersKey), tostring(ask.name)
if state.born == 0 then -- what was there before is of another time
	redis.call('DEL', membersKey, slotsKey, logKey, placesKey)
	members = {}
	state.born = now
end
local answer, me = { now = now, born = state.born }, members[name]
if me and number(ask.seq) <= me.seq then
	answer.stale = true
	return cjson.encode(answer)
elseif me and not ask.alone and now > me.expires then
	answer.over = true
	return cjson.encode(answer)
elseif not me then
	me = { paid = now, held = 0, rate = 0, base = 0, seen = 0 }
end
local tokens, slots = ask.tokens, ask.slots
if now - state.born < rosterTime then
	state.least = math.max(state.least, number(ask.replicas)) -- that there were before it was born
else
	state.least = 0
end
members[name] = me
if type(tokens) == 'table' then earn(state, tokens, members) end
me.seq, me.seen, me.expires = number(ask.seq), now, now + number(ask.lease)
if not ask.alone then me.paid = me.expires end
answer.replicas, answer.rank = roster(state, membersKey, members, name)
if type(tokens) == 'table' then answer.tokens = take(state, tokens, me, members, answer.replicas) end
if type(slots) == 'table' then answer.slots = grant(slotsKey, state, slots, me, members) end
pass(logKey, state, name, answer)
if ask.leaves then
	state.level = state.level + math.max(0, me.held)
	redis.call('HDEL', membersKey, name)
else
	writeMember(membersKey, name, me)
end
writeState(state)
return cjson.encode(answer)
