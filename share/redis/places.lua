-- places are those in flight that replicas share: what each has, wants, and when it was
-- heard of. Besides, when the store began to learn of them, the last exchange, and how many
-- there are at least: under names that no replica has.

local function readPlaces(key)
	local holders, names, about, all = {}, {}, {}, redis.call('HGETALL', key)
	for i = 1, #all, 2 do
		local held, want, seen = string.match(all[i + 1], '(%S+) (%S+) (%S+)')
		if all[i] == '.' then
			about = { born = number(held), at = number(want), replicas = number(seen) }
		else
			holders[all[i]] = { held = number(held), want = number(want), seen = number(seen) }
		end
	end
	return holders, about
end

local function writePlace(key, name, a, b, c)
	redis.call('HSET', key, name, string.format('%.0f %.0f %.0f', a, b, c))
end

-- fill returns how many of n each can have that wants so many, and how many are left then,
-- fewer than those that want more. The level is -1 if all can have what they want.
local function fill(n, wants)
	table.sort(wants)
	for i, want in ipairs(wants) do
		local others = #wants - i + 1
		if want > math.floor(n / others) then return math.floor(n / others), n % others end
		n = n - want
	end
	return -1, n
end

-- fair returns a replica's max-min fair share of n places by what all want, and of places
-- that none wants half of its even part.
local function fair(holders, name, n, replicas)
	local names, wants = {}, {}
	for other in pairs(holders) do names[#names + 1] = other end
	table.sort(names)
	local count = math.max(#names, replicas)
	if count == 1 then return n end
	local least = math.floor(math.floor(n / idlePlaces) / count)
	for i, other in ipairs(names) do
		wants[i] = math.max(least, holders[other].want)
	end
	local sorted = { unpack(wants) }
	local level, left = fill(n, sorted)
	local me = 1
	while names[me] ~= name do me = me + 1 end
	if level < 0 then return wants[me] + math.floor(math.floor(left / count) / 2) end
	if wants[me] <= level then return wants[me] end
	-- The rest goes one by one to those that want more, in turn.
	local first = math.floor(now / placesTurn) % #names
	for turn = 0, #names - 1 do
		local i = (first + turn) % #names + 1
		if i == me then break end
		if wants[i] > level then left = left - 1 end
	end
	return level + math.min(1, math.max(0, left))
end

-- divide hands out places. known is how many replicas the one that asks knows of, 0 if it
-- is new, and replicas of how many the store has heard.
local function divide(key, places, name, known, replicas)
	local holders, about = readPlaces(key)
	local limit, has = math.floor(number(places.limit)), math.floor(number(places.has))
	local held, want = math.floor(number(places.held)), math.floor(number(places.want))
	if not about.born or math.abs(now - about.at) > placesGap then
		about.born, about.replicas = now, 0
	end
	about.at, about.replicas = now, math.max(about.replicas, known)
	if not holders[name] and known == 0 and about.replicas > 0 then
		about.replicas = about.replicas + 1 -- it does not stand in for one that is silent
	end
	holders[name] = { held = held, want = want, seen = now }
	local told, others = 0, 0
	for _, h in pairs(holders) do
		if h.seen >= about.born then told = told + 1 end
	end
	local learning = now < about.born + rosterTime and
		(now < about.born + lease or told < math.max(replicas, about.replicas))
	for other, h in pairs(holders) do
		if other ~= name then
			if not learning and math.abs(now - h.seen) >= rosterTime then
				holders[other] = nil
				redis.call('HDEL', key, other)
			else
				others = others + h.held
			end
		end
	end
	local free = math.max(0, limit - others)
	local may = math.min(fair(holders, name, limit, replicas), free)
	if learning then
		may = has
		if about.replicas == 0 then may = math.max(may, math.min(1, free)) end
		free = 0
	end
	held = math.max(may, held)
	writePlace(key, name, held, want, now)
	writePlace(key, '.', about.born, about.at, about.replicas)
	keep(key)
	return { limit = may, free = math.max(0, free - held) }
end
