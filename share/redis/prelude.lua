-- The beginning of each script: what it was asked, and when. All instants are
-- milliseconds of this server's clock. Constants of package share stand before it.
-- ARGV[1] is empty, or the time, in tests. ARGV[2] is the ask, as JSON.
local now = tonumber(ARGV[1])
if not now then
	local t = redis.call('TIME')
	now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local ask = cjson.decode(ARGV[2])

-- number returns what an ask, or this store, has for a number: 0 for anything else.
local function number(x)
	x = tonumber(x)
	if not x or x ~= x or x > 1e15 or x < -1e15 then return 0 end
	return x
end

-- exact writes a number so that it is read as the same.
local function exact(x) return string.format('%.17g', x) end

-- keep has a key forgotten when no replica was there for that long.
local function keep(key) redis.call('PEXPIRE', key, sweepTime) end
