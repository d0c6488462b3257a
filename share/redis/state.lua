-- The state of a backend is one text: a dozen numbers, and what the last exchange of each
-- replica has left, by name. seq is its number, seen its time; the lease ends at expires;
-- until paid the pool earns for the replica, and after that it may earn on its own.
-- cjson keeps 14 digits of a number. Those that are added up here have more, and are texts.
local texts = { 'issued', 'served' }

local function readState(key)
	local text = redis.call('GET', key)
	local ok, state = pcall(cjson.decode, text or '')
	if not ok or type(state) ~= 'table' or type(state.members) ~= 'table' then
		return {
			born = now, members = {}, told = 0,
			issued = 0, served = 0, servedAt = 0, least = 0, swept = 0,
		}, true
	end
	for _, field in ipairs(texts) do state[field] = number(state[field]) end
	for other, m in pairs(state.members) do
		if type(m) ~= 'table' then
			state.members[other] = nil
		else -- the clock may have been set back
			for _, field in ipairs({ 'seq', 'seen', 'expires', 'paid', 'rate', 'base' }) do m[field] = number(m[field]) end
			m.seen = math.min(m.seen, now)
			m.expires = math.min(m.expires, now + idleLease)
			m.paid = math.min(m.paid, m.expires)
		end
	end
	return state
end

local function writeState(key, state)
	for _, field in ipairs(texts) do state[field] = exact(state[field]) end
	redis.call('SET', key, cjson.encode(state), 'PX', sweepTime)
end

-- roster returns how many replicas there are, and the rank of one of them. It forgets
-- those that were not heard of for long.
local function roster(state, name)
	local n, rank = 0, 0
	for other, m in pairs(state.members) do
		if now - m.seen > sweepTime then
			state.members[other] = nil
		elseif now - m.seen <= rosterTime then
			n = n + 1
			if other < name then rank = rank + 1 end
		end
	end
	return math.max(n, state.least), rank
end
