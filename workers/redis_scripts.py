"""What must happen in one step inside Redis. Times are the server's own, so workers' clocks need not agree.

The keys and values are kombu's: a hash `unacked` of delivery tag → JSON `[message, exchange, routing key]` and a sorted
set `unacked_index` of delivery tag → the time its lease was last renewed. A stock worker could take over from ours.
"""

_NOW = "local t = redis.call('TIME') local now = string.format('%d.%06d', t[1], t[2])\n"

# KEYS: index, unacked, then one list per queue. ARGV: most messages, most bytes, then per queue: the cost it may take,
# and 1 if a message may be taken whatever it costs. Lists are read from their right end, as kombu does.
# Answers: whether it stopped at a limit; the queues left with work for want of credit; queue, tag, message, …; the
# sizes of entries that are no kombu messages, which are gone. The pop comes before what needs memory: a full Redis
# refuses a script's first write only, and this one makes room.
POP = (
    _NOW
    + """
local function read(raw)
  local message = cjson.decode(raw)
  local properties = message.properties
  local info = properties.delivery_info
  local headers = message.headers
  local shoal = type(headers) == 'table' and headers.shoal
  local cost = type(shoal) == 'table' and type(shoal.cost) == 'number' and shoal.cost or 1
  local tag, exchange, route = properties.delivery_tag, info.exchange, info.routing_key
  assert(type(tag) == 'string' and type(exchange) == 'string' and type(route) == 'string')
  local tail = ',' .. cjson.encode(exchange) .. ',' .. cjson.encode(route) .. ']'
  return {tag = tag, tail = tail, cost = math.max(cost, 0)}
end

local messages, bytes = tonumber(ARGV[1]), tonumber(ARGV[2])
local limited, starved, taken, broken = 0, {}, {}, {}
for k = 3, #KEYS do
  local credit, any = tonumber(ARGV[2 * k - 3]), ARGV[2 * k - 2] == '1'
  while true do
    local raw = redis.call('LINDEX', KEYS[k], -1)
    if not raw then break end
    if messages <= 0 or bytes <= 0 then limited = 1 break end
    local ok, message = pcall(read, raw)
    if ok and message.cost > credit and not any then
      starved[#starved + 1] = k - 3
      break
    end
    redis.call('RPOP', KEYS[k])
    if ok then
      redis.call('ZADD', KEYS[1], now, message.tag)
      redis.call('HSET', KEYS[2], message.tag, '[' .. raw .. message.tail)
      taken[#taken + 1] = k - 3
      taken[#taken + 1] = message.tag
      taken[#taken + 1] = raw
      credit, any = credit - message.cost, false
      messages, bytes = messages - 1, bytes - #raw
    else
      broken[#broken + 1] = #raw
    end
  end
end
return {limited, starved, taken, broken}
"""
)

# KEYS: index. ARGV: tags. Only leases that still exist are renewed: a swept message belongs to somebody else.
RENEW = (
    _NOW
    + """
for i = 1, #ARGV do redis.call('ZADD', KEYS[1], 'XX', now, ARGV[i]) end
"""
)

# KEYS: index, unacked. ARGV: seconds a lease lasts, most tags, how our queues' names begin. Marks expired leases as
# renewed now, so that one sweeper has them for a while; those of other queues belong to ordinary Celery workers, which
# renew nothing. Answers: tag, the new score, the entry, …
CLAIM_EXPIRED = (
    _NOW
    + """
local claimed = {}
local oldest = string.format('%.6f', tonumber(now) - tonumber(ARGV[1]))
for _, tag in ipairs(redis.call('ZRANGE', KEYS[1], '-inf', oldest, 'BYSCORE', 'LIMIT', 0, ARGV[2])) do
  local entry = redis.call('HGET', KEYS[2], tag)
  local ok, queue = pcall(function() return cjson.decode(entry)[3]:sub(1, #ARGV[3]) end)
  if entry and not (ok and queue ~= ARGV[3]) then
    redis.call('ZADD', KEYS[1], now, tag)
    claimed[#claimed + 1] = tag
    claimed[#claimed + 1] = now
    claimed[#claimed + 1] = entry
  elseif not entry then
    redis.call('ZREM', KEYS[1], tag)
  end
end
return claimed
"""
)

# KEYS: index, unacked, queue. ARGV: tag, the score it was claimed with, message. Nothing happens if it was acknowledged
# or its owner came back since. The message goes to the end that is read next.
RESTORE = """
if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or -1) ~= tonumber(ARGV[2]) then return 0 end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('RPUSH', KEYS[3], ARGV[3])
return 1
"""

# KEYS: index, unacked, queue. ARGV: tag, message.
GIVE_BACK = """
redis.call('ZREM', KEYS[1], ARGV[1])
if redis.call('HDEL', KEYS[2], ARGV[1]) == 0 then return 0 end
redis.call('RPUSH', KEYS[3], ARGV[2])
return 1
"""
