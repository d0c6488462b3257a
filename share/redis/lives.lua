-- Lives of the replicas that share a zone, by name. seq is the number of a replica's last
-- ask, seen its time; pools earn for it until paid. Fields that begin with # are the
-- store's own: when it was asked first, when it was born, and how much news there has been.
local function readLives(key)
	local lives, all, state = {}, redis.call('HGETALL', key), {}
	for i = 1, #all, 2 do
		if string.sub(all[i], 1, 1) == '#' then
			state[all[i]] = number(all[i + 1])
		else
			local life, seq, seen, paid = string.match(all[i + 1], '(%S+) (%S+) (%S+) (%S+)')
			lives[string.sub(all[i], 2)] = { life = number(life), seq = number(seq), seen = number(seen), paid = number(paid) }
		end
	end
	return lives, state
end

local function writeLife(key, name, m)
	redis.call('HSET', key, '=' .. name, string.format('%.0f %.0f %.0f %.0f', m.life, m.seq, m.seen, m.paid))
	keep(key)
end

-- present returns how many replicas there are, and the rank of one of them. It forgets
-- those that were not heard of for long.
local function present(key, lives, name)
	local n, rank = 0, 0
	for other, m in pairs(lives) do
		if m.seen < now - sweepTime then
			redis.call('HDEL', key, '=' .. other)
			lives[other] = nil
		elseif m.seen >= now - rosterTime then
			n = n + 1
			if other < name then rank = rank + 1 end
		end
	end
	return n, rank
end

-- paidTo returns until when pools earn for any replica.
local function paidTo(lives)
	local last = 0
	for _, m in pairs(lives) do last = math.max(last, m.paid) end
	return last
end
