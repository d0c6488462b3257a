-- members are the replicas, by name: what the last exchange of each has left.
-- seq is its number, seen its time; the lease ends at expires; until paid the pool earns
-- for the replica, and after that it may earn on its own.
local function readMembers(key)
	local members, all = {}, redis.call('HGETALL', key)
	for i = 1, #all, 2 do
		local seq, seen, expires, paid, held, rate, base =
			string.match(all[i + 1], '(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)')
		members[all[i]] = {
			seq = number(seq), seen = number(seen), expires = number(expires), paid = number(paid),
			held = number(held), rate = number(rate), base = number(base),
		}
	end
	return members
end

local function writeMember(key, name, m)
	redis.call('HSET', key, name, string.format('%.0f %.0f %.0f %.0f %.17g %.17g %.17g',
		m.seq, m.seen, m.expires, m.paid, m.held, m.rate, m.base))
	keep(key)
end

-- roster returns how many replicas there are, and the rank of one of them. It forgets
-- those that were not heard of for long.
local function roster(state, key, members, name)
	local n, rank = 0, 0
	for other, m in pairs(members) do
		if now - m.seen > sweepTime then
			redis.call('HDEL', key, other)
			members[other] = nil
		elseif now - m.seen <= rosterTime then
			n = n + 1
			if other < name then rank = rank + 1 end
		end
	end
	return math.max(n, state.least), rank
end
