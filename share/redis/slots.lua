-- slots are the line that replicas share: how many clients are expected in each second. Of new
-- clients, in the field of the second, the kept share will come; in the field with an s are
-- all others, and what was left when it was too late to promise it.

local expected, changed = {}, {} -- by field: what it has, and whether that is new

local function of(key, field)
	expected[field] = expected[field] or number(redis.call('HGET', key, field))
	return expected[field]
end

local function add(key, field, x)
	expected[field] = of(key, field) + x
	changed[field] = true
end

local function writeSlots(key)
	local args = {}
	for field in pairs(changed) do
		args[#args + 1] = field
		args[#args + 1] = exact(expected[field])
	end
	if #args > 0 then
		redis.call('HSET', key, unpack(args))
		keep(key)
	end
end

-- sweep forgets the seconds before the one that is now.
local function sweep(key, state, second)
	if second - state.swept > keptSlots then
		redis.call('DEL', key)
		state.swept = second
	end
	if state.swept < second then
		local past = {}
		for n = state.swept, second - 1 do
			past[#past + 1] = n
			past[#past + 1] = 's' .. n
		end
		redis.call('HDEL', key, unpack(past))
		state.swept = second
	end
end

-- declare adds, or takes away, what a replica has promised without a grant.
local function declare(key, state, list, sign)
	if type(list) ~= 'table' then return end
	for _, slot in ipairs(list) do
		local n = type(slot) == 'table' and math.floor(number(slot.n)) or 0
		if n >= state.swept and n <= now / 1000 + keptSlots then add(key, 's' .. n, sign * number(slot.x)) end
	end
end

-- queue moves the tail on: its numbers are served at a pace.
local function queue(state, slots, pace)
	state.issued = math.max(state.served, state.issued + number(slots.numbers))
	if state.servedAt > 0 and state.issued > state.served then
		state.served = state.served + (now - state.servedAt) / 1000 * pace
	end
	state.servedAt = now
	state.served = math.min(state.issued, state.served + number(slots.served))
	if slots.dry == true then state.served = state.issued end
end

-- book takes the first room from an instant on. What does not fit into its second it takes
-- from the next ones.
local function book(key, from, stop, spare, kept, weight, fresh)
	local n = math.floor(from / 1000)
	while n * 1000 <= stop do
		local load = of(key, n) * kept + of(key, 's' .. n)
		if load < spare * (1 - 1e-5) then
			local at = math.max(from, n * 1000 + math.ceil(load / spare * 1000))
			if at > stop then return end
			local passed = (at - n * 1000) / 1000 * spare
			if passed > load and at == from then add(key, 's' .. n, passed - load) end
			for m = n, n + keptSlots / 2 - 1 do
				if weight <= 1e-6 then break end
				local part = math.min(weight, math.max(0, spare - of(key, m) * kept - of(key, 's' .. m)))
				if fresh then add(key, m, part / kept) else add(key, 's' .. m, part) end
				weight = weight - part
			end
			return at
		end
		n = n + 1
	end
end

local function grant(key, state, slots, me, members)
	me.rate, me.base = number(slots.rate), number(slots.base)
	local answer = { rate = 0, base = 0 }
	for _, m in pairs(members) do
		if m ~= me and now < m.paid then
			answer.rate, answer.base = answer.rate + m.rate, answer.base + m.base
		end
	end
	local rate, limit = me.rate + answer.rate, number(slots.limit)
	if limit > 0 and (rate == 0 or rate > limit) then rate = limit end
	local spare = math.max(0.98 * rate - me.base - answer.base, 0.1 * rate)
	local kept = math.min(math.max(0.005, number(slots.kept)), 1)
	sweep(key, state, math.floor(now / 1000))
	declare(key, state, slots.anew, 1)
	declare(key, state, slots.guessed, 1)
	declare(key, state, slots.back, -1)
	queue(state, slots, spare / kept)
	local times, stop = {}, now + math.min(keptSlots * 1000, number(slots.max))
	for n = 0, math.min(number(slots.want), mostWant) - 1 do
		local fresh = n >= number(slots.proven)
		local at = book(key, now + shortestWait, stop, spare, kept, fresh and kept or 1, fresh)
		if not at then
			answer.full = true
			break
		end
		times[#times + 1] = at
	end
	writeSlots(key)
	if #times > 0 then answer.times = times end -- an empty list would be told as {}
	answer.issued, answer.served = state.issued, state.served
	return answer
end
