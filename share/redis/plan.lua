-- One replica's exchange about one backend: share.Model.Plan.
local stateKey, slotsKey, logKey = KEYS[1], KEYS[2], KEYS[3]
local state, new = readState(stateKey)
if new then redis.call('DEL', slotsKey, logKey) end -- they are of another time
local members, name = state.members, tostring(ask.name)
local answer, me = { now = now, born = state.born }, members[name]
if me and number(ask.seq) <= me.seq then
	answer.stale = true
	return cjson.encode(answer)
elseif me and not ask.alone and now > me.expires then
	answer.over = true
	return cjson.encode(answer)
elseif not me then
	me = { paid = now, rate = 0, base = 0, seen = 0 }
	members[name] = me
end
local slots = ask.slots
if now - state.born < rosterTime then
	state.least = math.max(state.least, number(ask.replicas)) -- that there were before it was born
else
	state.least = 0
end
me.seq, me.seen, me.expires = number(ask.seq), now, now + number(ask.lease)
if not ask.alone then me.paid = me.expires end
answer.replicas, answer.rank = roster(state, name)
if type(slots) == 'table' then answer.slots = grant(slotsKey, state, slots, me, members) end
pass(logKey, state, name, answer)
if ask.leaves == true then
	members[name] = nil
end
writeState(stateKey, state)
return cjson.encode(answer)
