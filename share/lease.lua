-- lease is one replica's exchange about one unit: a backend, or a zone. All that replicas share of it is pools, of which
-- each replica holds some: a pool with a rate earns tokens, one without has permits in flight. Instants and times are
-- milliseconds. KEYS: the roster, the notes, the units of the same name, then one hash for each pool. ARGV: the time, '' for
-- the server's; the ask; the notes to tell the others. A row of the roster is a replica: pools earn its part of the rate until paid.
-- A pool without use is kept for KEEP after its lease. When pools have earned for no replica for so long, the store takes those
-- that it does not know for empty, not full. After a silence of QUIET of all replicas it learns again what they hold; that is far
-- below FORGET, as a replica may have worked alone meanwhile. A store that began less than that ago, and has lost nothing, is
-- new: no client has used any token before, or no more replicas have come than expected, each of which has its part. A permit
-- that cannot be divided stays with one replica for TURN; passing it on takes 100 ms. A replica counts for FORGET after it was
-- heard of, and pools earn for it for LEASE. A clock that is set back by more than STEP loses all: with instants ahead of it,
-- pools would earn nothing until it is as late again.
local KEEP, QUIET, TURN, FORGET, LEASE = 60000, 5000, 5000, 15000, 350
local STEP = 10
local ask, roster, list, now = cjson.decode(ARGV[2]), KEYS[1], KEYS[2], tonumber(ARGV[1])
if not now then
	local t = redis.call('TIME')
	now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local min, max, floor = math.min, math.max, math.floor
local rows, count, all = {}, 0, redis.call('HGETALL', roster)
for i = 1, #all, 2 do rows[all[i]] = cjson.decode(all[i + 1]) end
local unit = rows['#'] or { opened = now, born = 0, at = 0, paid = now, told = 0, issued = 0, served = 0, new = 0, proven = 0 }
rows['#'] = nil
local me = rows[ask.me]
-- It was overtaken, or the replica works alone already, or the clock was set back since it has heard of it.
if me and ask.seq <= me.seq or not ask.alone and (now > ask.till or ask.heard > now) then
	return cjson.encode({ now = now, stale = true })
end
if unit.at > now + STEP or ask.back then -- the clock was set back: no instant that is known is right
	for name in pairs(rows) do redis.call('HDEL', roster, name) end
	redis.call('LTRIM', list, 1, 0)
	me, rows, unit = nil, {}, { opened = now, born = now, at = 0, paid = now, told = 0, issued = 0, served = 0, new = 0, proven = 0 }
end
local passed = unit.at > 0 and max(0, now - unit.at) or 0 -- since any replica has told of the unit

-- What was answered after all that is known here is lost: pools that are not known were empty then, not full. It is the
-- same after a long time in which pools earned for no replica, as each has earned itself.
local late = me and me.paid > 0 and not ask.alone and unit.paid < now - KEEP
if late or ask.last > (me and me.seq or 0) then unit.born, unit.at = now, 0 end
local known = ask.heard > 0 and ask.n or 0 -- replicas, as the store has said
local new = not me and known == 0
if math.abs(now - unit.at) > QUIET then unit.learns, unit.least = now, 0 end -- it learns again what all hold
unit.at, unit.least = now, max(unit.least, known)
if new and unit.least > 0 then unit.least = unit.least + 1 end -- it does not stand in for one that is silent
if not me or me.life ~= ask.life then me = { paid = 0 } end
if not ask.alone then me.paid = max(me.paid, ask.till) end
me.seq, me.life, me.seen, me.x, rows[ask.me], unit.paid = ask.seq, ask.life, now, ask.slots and { ask.slots.rate, ask.slots.base }, me, max(unit.paid, me.paid)
local told, sums = 0, { 0, 0 } -- gauges of the others
for name, row in pairs(rows) do
	if row.seen < now - 40 * FORGET then
		redis.call('HDEL', roster, name)
		rows[name] = nil
	elseif row.seen >= now - FORGET then
		count, row.counts = count + 1, true
		if name ~= ask.me and now < row.paid and row.x then sums = { sums[1] + row.x[1], sums[2] + row.x[2] } end
	end
	if row.seen >= unit.learns then told = told + 1 end
end
local n = max(count, ask.n)
local learning = now < unit.learns + FORGET and (now < unit.learns + LEASE or told < max(count, unit.least))

-- fair returns how many of a pool's permits a replica may have: a max-min fair part by what all want, and half of its even
-- part of what nobody wants. Permits that cannot be divided stay with one replica for a turn. Those without demand keep a
-- fortieth together, so that their first request finds one.
local function fair(cap, wants, names)
	if max(#names, count) == 1 then return cap end
	table.sort(names)
	local list, most = {}, max(#names, count)
	for i, name in ipairs(names) do
		wants[name] = max(floor(cap / 40 / most), wants[name])
		list[i] = wants[name]
	end
	table.sort(list)
	for i, want in ipairs(list) do
		local level, left = floor(cap / (#list - i + 1)), cap % (#list - i + 1)
		if want > level then
			if wants[ask.me] <= level then return wants[ask.me] end
			for turn = 0, #names - 1 do -- the rest goes one by one to those that want more
				local name = names[(floor(now / TURN) + turn) % #names + 1]
				if name == ask.me then return level + min(1, max(0, left)) end
				if wants[name] > level then left = left - 1 end
			end
		end
		cap = cap - want
	end
	return wants[ask.me] + floor(cap / most / 2)
end

-- pool exchanges units of one pool: the pool and what all hold are never more than cap. A replica that does not let the
-- pool earn for it earns part of the rate itself, and holds part of cap at most, or what it has told if that is more.
local function pool(key, p)
	local of, held, gave, want = ask.of[p[1]], p[2], p[3], p[4]
	local part, b, holds = of.rate > 0 and of.cap / of.parts / n or 0, { p = 0 }, {}
	if of.parts > 1 and floor(part) < of.cost then part = 0 elseif of.parts > 1 then part = floor(part) end
	local all = redis.call('HGETALL', key)
	for i = 1, #all, 2 do
		local name = string.sub(all[i], 2)
		if name == '' then b[all[i]] = tonumber(all[i + 1])
		elseif rows[name] then holds[name] = cjson.decode(all[i + 1]) -- held, want, till, life
		else redis.call('HDEL', key, all[i]) end
	end
	local known, had, others, paid, wants, names = b.a and b.a >= unit.born and b.a <= now + STEP, part, (n - count) * part, 0, { [ask.me] = want }, { ask.me }
	for name, row in pairs(rows) do
		local h, has, till = holds[name], part, 0
		if h and (h[4] == row.life or of.rate == 0) then
			has, till = h[1], min(h[3], row.paid)
			if till < now then has = max(has, part) end
			if known then paid = paid + max(0, min(now, till) - b.a) end
		end
		if name == ask.me then had = has
		elseif row.counts or of.rate == 0 and learning and h then
			others = others + max(0, has)
			if of.rate == 0 and h then wants[name], names[#names + 1] = h[2], name end
		end
	end
	local got, free = 0, of.cap - others - max(0, held)
	if of.rate > 0 then
		local level, room = b.p + paid * of.rate / n, max(0, min(free, of.cap - others - max(0, had))) -- what was used just now left no room
		if not known then level = max(0, min(of.cap, (now - unit.born) * of.rate) - part * n) end
		b.p = max(min(min(level, room) + gave, max(0, free)), -(of.debt or 0)) -- who gives less than nothing leaves a debt
		if not ask.alone then got = max(0, min(want, floor(b.p))) end
		local need = max(of.cost or 0, p[5])
		if of.parts > 1 and got > need and b.p < need * n then got = max(need, floor(got / 2)) end -- the last ones are for all
		if of.parts > 1 and held + got < need then got = 0 end
		b.p, held = b.p - got, held + got
	else
		free = max(0, of.cap - others)
		got = min(fair(of.cap, wants, names), free)
		if learning then -- each may have what it has; where all are new, each gets one
			got = min(gave, free)
			if unit.least == 0 then got = max(got, min(1, free)) end
			free = 0
		end
		held = max(got, held)
		b.p = max(0, free - held)
	end
	redis.call('HSET', key, 'p', string.format('%.17g', b.p), 'a', string.format('%.0f', now),
		'=' .. ask.me, string.format('[%.17g,%.17g,%.0f,%.0f]', held, want, now + of.stay, ask.life))
	redis.call('PEXPIRE', key, string.format('%.0f', of.stay + KEEP))
	return { g = got, p = b.p }
end

-- line promises times. Clients that are promised a time beyond the next second are work, new ones by the share of promises
-- that is kept: the next client comes when that is done. The numbers of its tail are served at the same pace.
local function line(s)
	local rate, passed = s.rate + sums[1], passed / 1000
	if s.limit > 0 and (rate == 0 or rate > s.limit) then rate = s.limit end
	local kept, spare = min(max(0.005, s.kept), 1), max(0.98 * rate - s.base - sums[2], 0.1 * rate)
	local work = unit.new * kept + unit.proven
	local left = work > 0 and max(0, 1 - passed * spare / work) or 0
	unit.new, unit.proven = unit.new * left, unit.proven * left
	if now - unit.born < QUIET then -- they were promised more than is known here
		unit.proven = max(unit.proven, (s.last - now - 1000) / 1000 * spare - unit.new * kept)
	end
	unit.issued = max(unit.served, unit.issued + s.numbers)
	unit.served = min(unit.issued, unit.served + s.served + passed * spare / kept)
	local times = {}
	for n = 1, min(s.want, 1000) do
		local at = now + 1000 + math.ceil((unit.new * kept + unit.proven) / spare * 1000)
		if not (at <= now + s.max) then break end
		times[n] = at
		if n > s.proven then unit.new = unit.new + 1 else unit.proven = unit.proven + 1 end
	end
	if #times == 0 then times = nil end -- an empty list would be told as {}
	local ends = min(now + s.max, now + 1000 + math.ceil((unit.new * kept + unit.proven) / spare * 1000))
	return { rate = sums[1], base = sums[2], times = times, ends = ends, issued = unit.issued, served = unit.served }
end

local answer = { now = now, born = unit.born, n = count, new = unit.born == 0 and now - unit.opened < QUIET and (not unit.used or count <= ask.n) }
local given = {}
for i, p in ipairs(ask.pools or {}) do given[i] = pool(KEYS[i + 3], p) end
if #given > 0 then answer.pools, unit.used = given, true end -- an empty list would be told as {}
if ask.slots then answer.slots = line(ask.slots) end
if #ARGV[3] > 0 then
	redis.call('RPUSH', list, ARGV[3])
	redis.call('LTRIM', list, -4096, -1)
	redis.call('PEXPIRE', list, 120000)
	unit.told = unit.told + 1
end
local first, after = unit.told - redis.call('LLEN', list), ask.after
if after > unit.told then after = first end -- from before the store forgot
after = max(after, first)
local news = redis.call('LRANGE', list, after - first, after - first + 63)
answer.after, answer.more = after + #news, after + #news < unit.told
if #news > 0 then answer.news = news end
if ask.what then -- replicas with other limits have a roster of their own
	local others, units = {}, KEYS[3]
	redis.call('HSET', units, roster, cjson.encode({ seen = now, what = ask.what, replicas = count }))
	redis.call('PEXPIRE', units, 600000)
	local all = redis.call('HGETALL', units)
	for i = 1, #all, 2 do
		local unit = cjson.decode(all[i + 1])
		if math.abs(now - unit.seen) > FORGET then redis.call('HDEL', units, all[i])
		elseif all[i] ~= roster and #others < 64 then others[#others + 1] = { what = unit.what, replicas = unit.replicas } end
	end
	if #others > 0 then answer.others = others end
end
me.counts = nil
if ask.leaves then redis.call('HDEL', roster, ask.me) else redis.call('HSET', roster, ask.me, cjson.encode(me)) end
redis.call('HSET', roster, '#', cjson.encode(unit))
redis.call('PEXPIRE', roster, 600000)
return cjson.encode(answer)
