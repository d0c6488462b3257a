-- units lists what replicas share under one name: a unit for each set of limits. It
-- answers with those that other replicas have.
local list, others = KEYS[1], {}
redis.call('HSET', list, tostring(ask.sum), cjson.encode({ seen = now, what = ask.what, replicas = ask.replicas }))
keep(list)
local all = redis.call('HGETALL', list)
for i = 1, #all, 2 do
	local good, unit = pcall(cjson.decode, all[i + 1])
	good = good and type(unit) == 'table' and type(unit.what) == 'string'
	if not good or math.abs(now - number(unit.seen)) > rosterTime then
		redis.call('HDEL', list, all[i]) -- also what no replica has written
	elseif all[i] ~= ask.sum then
		others[#others + 1] = { what = unit.what, replicas = math.floor(math.min(number(unit.replicas), 1e6)) }
	end
end
local answer = {}
if #others > 0 then answer.others = others end
return cjson.encode(answer)
