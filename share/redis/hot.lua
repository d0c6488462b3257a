-- The pool of a hot key is kept in millionths of a token, p, as it was at a; the key is
-- hot until s. Each replica that has told what it holds has a field of its own: tokens,
-- until when it was told that the pool earns for it, and its life.
local million = 1000000

-- settle returns for how long the replicas have let the pool earn for them, how many do
-- now, the one that asks included, what the others hold, and what that one had. It forgets
-- those that do not.
local function settle(key, name, b, lives, part)
	local paid, joined, held, had = 0, 1, 0, part
	for other, h in pairs(b.held) do
		local m, till = lives[other], 0
		if m and m.life == h.life then till = math.min(m.paid, h.till) end
		paid = paid + math.max(0, math.min(now, till) - b.a)
		if till < now then
			redis.call('HDEL', key, '=' .. other)
		elseif other == name then
			had = h.tokens
		else
			joined = joined + 1
			held = held + h.tokens
		end
	end
	return paid, joined, held, had
end

-- share returns how many tokens a replica gets. The last ones are for all, and what is
-- not enough for a request is of no use.
local function share(pool, zone, held, want, replicas)
	local got = math.min(want, math.floor(pool / million))
	if got > zone.cost and pool < million * zone.cost * replicas then
		got = math.max(zone.cost, math.floor(got / 2))
	end
	if held + million * got < million * zone.cost then got = 0 end
	return got
end

-- stay keeps a key hot for as long as its pool needs to be full, and reports whether that
-- is for longer than it was.
local function stay(b, zone, need)
	local full = math.ceil(zone.burst / zone.rate * 1000)
	local time = math.max(2 * full, minStay)
	need = math.min(need, 2 * full + minStay / 2)
	if b.s - now >= math.max(need, time / 2) then return false end
	b.s = now + math.max(time, 2 * need)
	return true
end

-- isFull reports whether the pool of a key that is not hot any more is full: all replicas
-- have let it earn for as long as it took.
local function isFull(b, lives)
	for name, h in pairs(b.held) do
		local m = lives[name]
		if not m or m.life ~= h.life or m.paid < b.s or h.till < b.s then return false end
	end
	return true
end

local function readHot(key, born, lives)
	local b, all = { p = 0, a = now, s = 0, held = {} }, redis.call('HGETALL', key)
	for i = 1, #all, 2 do
		local field, value = all[i], all[i + 1]
		if string.sub(field, 1, 1) == '=' then
			local tokens, till, life = string.match(value, '(%S+) (%S+) (%S+)')
			b.held[string.sub(field, 2)] = { tokens = number(tokens), till = number(till), life = number(life) }
		else
			b[field] = number(value)
		end
	end
	if #all == 0 then
		b.fresh = true
	elseif b.a < born or b.s <= now and (isFull(b, lives) or b.s + grace <= now) then
		redis.call('DEL', key)
		b = { p = 0, a = now, s = 0, held = {}, fresh = true }
	end
	return b
end
