-- news are what replicas tell each other, in a log: state.told is the number of the last.

-- pass passes news on.
local function pass(key, state, name, answer)
	local after = math.floor(number(ask.after))
	if after < 0 or after > state.told then after = 0 end -- of a store that was before this one
	if after < state.told then
		local news = {}
		for _, entry in ipairs(redis.call('XRANGE', key, string.format('0-%.0f', after + 1), '+', 'COUNT', maxNews)) do
			after = number(string.match(entry[1], '%d+$'))
			if entry[2][1] ~= name then news[#news + 1] = entry[2][2] end
		end
		if #news > 0 then answer.news = news end
	end
	answer.after = after
	if type(ask.news) == 'string' and ask.news ~= '' then
		state.told = state.told + 1
		redis.call('XADD', key, 'MAXLEN', keptNews, string.format('0-%.0f', state.told), name, ask.news)
		keep(key)
	end
end
