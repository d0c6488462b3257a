-- slots are the calendar that replicas share: how many returns are expected in each bucket
-- that is granted. Buckets before state.first are divided evenly, without asking.

local loads, changed = {}, {} -- by bucket: what is expected there, and whether that is new

local function load(key, n)
	loads[n] = loads[n] or number(redis.call('HGET', key, n))
	return loads[n]
end

local function add(key, n, size)
	loads[n] = load(key, n) + size
	changed[n] = true
end

local function writeSlots(key)
	local args = {}
	for n in pairs(changed) do
		args[#args + 1] = n
		args[#args + 1] = exact(loads[n])
	end
	if #args > 0 then
		redis.call('HSET', key, unpack(args))
		keep(key)
	end
end

-- each calls a function with each slot of a list.
local function each(list, f)
	if type(list) ~= 'table' then return end
	for _, slot in ipairs(list) do
		if type(slot) == 'table' then f(math.floor(number(slot.n)), number(slot.x)) end
	end
end

-- sweep forgets the buckets before the one that is now.
local function sweep(key, state, bucket)
	if state.first > 0 and bucket > state.last or bucket - state.swept > keptSlots then -- all that was granted is over
		redis.call('DEL', key)
		state.first, state.cursor, state.last = 0, 0, 0
		state.swept = bucket
	end
	if state.swept < bucket then
		local past = {}
		for n = state.swept, bucket - 1 do past[#past + 1] = n end
		redis.call('HDEL', key, unpack(past))
		state.swept = bucket
	end
end

-- declare takes what a replica has promised without a grant, and what it gives back.
local function declare(key, state, slots)
	if state.first == 0 and number(slots.first) > 0 then
		state.first, state.cursor = math.floor(number(slots.first)), math.floor(number(slots.first))
	end
	local function put(n, size)
		if n < state.swept then return end
		add(key, n, size)
		state.last = math.max(state.last, n)
	end
	each(slots.anew, put)
	each(slots.guessed, put)
	each(slots.back, function(n, size)
		if n < state.swept then return end
		add(key, n, -size)
		if n >= state.first and state.first > 0 then state.cursor = math.min(state.cursor, n) end
	end)
end

-- queue moves the queue of deferred clients on: numbers are served at the spare rate.
local function queue(state, slots, spare)
	state.issued = math.max(state.served, state.issued + number(slots.numbers))
	if state.servedAt > 0 and state.issued > state.served then
		state.served = state.served + (now - state.servedAt) / 1000 * spare / math.max(0.005, number(slots.kept))
	end
	state.servedAt = now
	state.served = math.min(state.issued, state.served + number(slots.served))
	if slots.dry == true then state.served = state.issued end
end

-- hand gives a replica the first slots that are free: whole ones, as many as the spare
-- rate allows on average.
local function hand(key, state, slots, spare)
	local grants, want = {}, number(slots.want)
	if want <= 0 then return grants end
	if state.first == 0 then
		state.first = math.floor((now + shortestWait + dividedTime + staleTime) / slotWidth) + 1
		state.cursor = state.first
	end
	local size = spare * slotWidth / 1000
	local n = math.max(state.cursor, math.floor((now + shortestWait) / slotWidth) + 1)
	local stop = math.floor((now + math.min(longestWait, number(slots.max))) / slotWidth)
	while want > 0 and n <= stop do
		local free = math.floor(size * (n % 4096 + 1)) - math.floor(size * (n % 4096)) - load(key, n)
		if free >= 0.5 then
			local got = math.min(free, want)
			want, free = want - got, free - got
			add(key, n, got)
			state.last = math.max(state.last, n)
			grants[#grants + 1] = { n = n, x = got }
		end
		if free < 0.5 and n == state.cursor then state.cursor = n + 1 end
		n = n + 1
	end
	return grants
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
	sweep(key, state, math.floor(now / slotWidth))
	declare(key, state, slots)
	queue(state, slots, spare)
	local grants = hand(key, state, slots, spare)
	writeSlots(key)
	if #grants > 0 then answer.grants = grants end -- an empty list would be told as {}
	answer.first, answer.cursor, answer.issued, answer.served = state.first, state.cursor, state.issued, state.served
	return answer
end
