-- The pool has the tokens that no replica holds: state.level, as it was at state.at.

-- earn has the pool earn what its replicas do not earn on their own. The rate is divided
-- among all that there are: those that are not heard of may earn their part.
local function earn(state, tokens, members)
	if state.at == 0 then state.level, state.at = 0, state.born end
	local n, earning = 0, 0
	for _, m in pairs(members) do
		if now - m.seen <= rosterTime then
			n = n + 1
			earning = earning + math.max(0, math.min(now, m.paid) - state.at)
		end
	end
	state.level = state.level + number(tokens.rate) * earning / 1000 / math.max(1, n, state.least)
	state.at = now
end

-- take gives a replica tokens: at most half of what there is, so that the next one finds
-- some.
local function take(state, tokens, me, members, replicas)
	local burst = number(tokens.burst)
	local part = math.max(1, burst / replicas) -- the most that a replica earns on its own
	local others, unknown, earning = 0, replicas, 0
	for _, m in pairs(members) do
		if now < m.paid then earning = earning + 1 end
		if now - m.seen <= rosterTime then
			unknown = unknown - 1
			if m ~= me then
				others = others + (now > m.expires and math.max(m.held, part) or math.max(0, m.held))
			end
		end
	end
	others = others + unknown * part -- of a store that has just been born
	-- Tokens earned while all was full are lost, though some have been used since.
	state.level = math.min(state.level, burst - others - math.max(0, me.held)) + number(tokens.gave)
	me.held = number(tokens.held)
	state.level = math.min(state.level, burst - others - math.max(0, me.held)) -- it may have earned on its own
	local got, want = 0, math.floor(number(tokens.want))
	if want > 0 and state.level >= 1 and not ask.alone then
		got = math.min(want, math.max(1, math.floor(state.level / 2)))
		state.level = state.level - got
		me.held = me.held + got
	end
	local wait = 0
	if state.level < 1 then
		local rate = number(tokens.rate) * math.max(1, earning) / replicas
		wait = math.min(1e12, math.ceil((1 - state.level) * 1000 / rate))
	end
	return { got = got, pool = state.level, wait = wait }
end
