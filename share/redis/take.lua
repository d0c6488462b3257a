-- One replica's exchange about the hot keys in one slot of a zone: share.ZoneModel.Take.
-- KEYS are the lives, the news, and the buckets in the order of the ask.
local livesKey, newsKey, name = KEYS[1], KEYS[2], tostring(ask.name)

-- whole returns a number that counts something, from 0 on.
local function whole(x, most) return math.min(math.floor(math.max(0, number(x))), most) end

local zone = { rate = number(ask.rate), burst = whole(ask.burst, 1e9), cost = whole(ask.cost, 1e9) }
local lives, state = readLives(livesKey)
local opened, born, told = state['#open'], state['#born'] or 0, state['#told'] or 0
local m, life, seq, lease = lives[name], whole(ask.life, 1e15), whole(ask.seq, 1e15), whole(ask.lease, mostLease)
local last, alone = whole(ask.last, 1e15), ask.alone == true
if m and (life < m.life or seq <= m.seq) then
	return cjson.encode({ now = now, born = born, stale = true })
end

-- What is told of was answered after all that this store knows: it has lost something.
-- Buckets that it has no record of were empty then, not full. It is the same after a long
-- time in which pools have earned for no replica: those that live on have earned themselves.
local lost = last > 0 and (not m or m.seq < last) or not alone and m and m.paid > 0 and paidTo(lives) < now - grace
if not opened then
	opened, born = now, 0
	redis.call('HSET', livesKey, '#open', string.format('%.0f', opened))
end
if lost then
	born = now
	redis.call('HSET', livesKey, '#born', string.format('%.0f', born))
end
local heard = math.min(whole(ask.heard, 1e15), now)
local over = not alone and ask.leaves ~= true and heard > 0 and now > heard + lease
if not m or m.life ~= life then m = { paid = 0 } end
if not alone and not over and heard > 0 then m.paid = math.max(m.paid, heard + lease) end
m.life, m.seq, m.seen = life, seq, now
lives[name] = m
writeLife(livesKey, name, m)
if ask.leaves == true then
	redis.call('HDEL', livesKey, '=' .. name)
	return cjson.encode({ now = now, born = born })
end
if over then return cjson.encode({ now = now, born = born, over = true }) end

local answer = { now = now, born = born, after = whole(ask.after, 1e15) }
answer.replicas, answer.rank = present(livesKey, lives, name)
if born == 0 and now - opened < newTime then answer.new = true end
if alone then return cjson.encode(answer) end

-- take answers about one key.
local function take(key, k)
	local replicas = math.max(answer.replicas, whole(ask.replicas, mostReplicas))
	local held, gave, want = whole(k.h, 1e15), whole(k.g, 1e15), whole(k.w, 1e9)
	local part = math.floor(zone.burst / (2 * replicas))
	if part < zone.cost then part = 0 end
	local b = readHot(key, born, lives)
	local paid, joined, others, had = settle(key, name, b, lives, million * part)
	local room = math.max(0, million * zone.burst - others - million * part * math.max(0, replicas - joined))
	local earned = math.floor(paid * zone.rate * 1000 / replicas)
	if b.fresh then
		earned = math.min(math.floor((now - born) * zone.rate * 1000), million * zone.burst)
		earned = math.max(0, earned - million * part * replicas)
	end
	-- The replica may have used tokens just now: until then they left no room.
	b.p = math.min(math.max(0, room - had), b.p + math.min(earned, 9e15))
	local free = math.max(0, room - held)
	b.p = math.min(free, b.p + gave)

	local got = share(b.p, zone, held, want, replicas)
	b.p = b.p - million * got
	local flow = joined * zone.rate * 1000 / replicas -- per millisecond
	if stay(b, zone, math.ceil((free - million * got - b.p) / flow)) then
		told = told + 1
		redis.call('RPUSH', newsKey, string.format('%s %.0f', tostring(k.k), b.s))
		redis.call('LTRIM', newsKey, -keptHot, -1)
		redis.call('HSET', livesKey, '#told', string.format('%.0f', told))
		keep(newsKey)
	end
	redis.call('HSET', key, 'p', string.format('%.0f', b.p), 'a', string.format('%.0f', now), 's', string.format('%.0f', b.s),
		'=' .. name, string.format('%.0f %.0f %.0f', held + million * got, b.s, life))
	redis.call('PEXPIRE', key, string.format('%.0f', b.s - now + grace))
	local wait, short = 0, million * zone.cost - b.p
	if short > 0 then wait = math.ceil(short / (zone.rate * 1000)) end -- all will know of the key soon
	return { g = got, w = wait, s = b.s - now }
end

-- news tells what is newly hot, and what will be for longer.
local function news()
	local kept = redis.call('LLEN', newsKey)
	local first, list = told - kept, {}
	if answer.after > told then answer.after = first end -- it is from before the store forgot all
	answer.after = math.max(answer.after, first)
	for _, text in ipairs(redis.call('LRANGE', newsKey, answer.after - first, answer.after - first + maxTake - 1)) do
		local key, till = string.match(text, '^(%S*) (%S+)$')
		if key and number(till) > now then list[#list + 1] = { k = key, s = number(till) - now } end
		answer.after = answer.after + 1
	end
	if #list > 0 then answer.news = list end
end

local full = zone.burst / zone.rate * 1000
if type(ask.keys) == 'table' and zone.rate >= 1e-7 and zone.burst >= 1 and zone.cost >= 1 and zone.cost <= zone.burst and full <= longestFull then
	local list = {}
	for i, k in ipairs(ask.keys) do
		if KEYS[i + 2] and type(k) == 'table' then list[#list + 1] = take(KEYS[i + 2], k) end
	end
	if #list > 0 then answer.keys = list end
end
news()
return cjson.encode(answer)
