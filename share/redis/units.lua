-- units lists what replicas share under one name: a unit for each set of limits. It answers with those that other
-- replicas have. ARGV[2] is the ask.
local ask, list, others, t = cjson.decode(ARGV[2]), KEYS[1], {}, redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('HSET', list, tostring(ask.sum), cjson.encode({ seen = now, what = ask.what, replicas = ask.replicas }))
redis.call('PEXPIRE', list, 600000)
local all = redis.call('HGETALL', list)
for i = 1, #all, 2 do
	local good, unit = pcall(cjson.decode, all[i + 1])
	good = good and type(unit) == 'table' and type(unit.what) == 'string'
	if not good or not (math.abs(now - (tonumber(unit.seen) or 0)) <= 15000) then
		redis.call('HDEL', list, all[i]) -- also what no replica has written
	elseif all[i] ~= ask.sum then
		others[#others + 1] = { what = unit.what, replicas = math.floor(math.min(tonumber(unit.replicas) or 0, 1e6)) }
	end
end
local answer = {}
if #others > 0 then answer.others = others end
return cjson.encode(answer)
