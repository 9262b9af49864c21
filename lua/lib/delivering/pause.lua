--- The pause that the options of a queue give a message after a failed delivery: longer after each of its failures.
--
-- The options are read only when a delivery has failed, so they cost no other call anything.
local pause = {}
local LONGEST = 315360000000
local PRIME, FACTOR = 2147483647, 48271

--- When each message is ready again, by id; nil: at once. A delay that the caller gives goes before the queue's pause.
-- The pause begins when the delivery failed: for a lease that ran out, at its end, however late somebody notices.
function pause.ends(q, now, ids, failed, how)
  local ends, rule = {}, not how.delay and how.counted == 1 and pause.rule(q)
  local tokens = rule and how.ran_out and redis.call('ZMSCORE', q.leases, unpack(ids))
  for i, id in ipairs(ids) do
    if rule then
      local at = tokens and math.floor(tokens[i] / 1000) or now
      ends[id] = at + lazy(pause).after(rule, id, (failed[id] or 0) + 1, at)
    elseif how.delay then
      ends[id] = now + how.delay
    end
  end
  return ends
end

--- The rule in force; false: none.
function pause.rule(q)
  local m = redis.call('HMGET', q.meta, 'redelivery_delay', 'redelivery_multiplier', 'redelivery_max_delay',
    'redelivery_jitter')
  return m[1] and {delay = tonumber(m[1]), multiplier = tonumber(m[2] or 1), most = tonumber(m[3] or LONGEST),
    jitter = tonumber(m[4] or 0)}
end

--- The pause in ms after failed delivery number `n` of a message, which failed at `at`. Jitter only shortens it.
-- The power may be infinite, its minimum with `most` is not.
function pause.after(rule, id, n, at)
  local ms = math.min(rule.most, rule.delay * rule.multiplier ^ (n - 1))
  if rule.jitter > 0 then
    ms = ms * (1 - rule.jitter * pause.share(id, n, at))
  end
  return math.max(1, math.floor(ms))
end

--- A number from 0 to below 1 that differs from message to message and from failure to failure, evenly spread.
-- It comes from arithmetic, because Redis 6.2 gives each run of a script the same random numbers.
function pause.share(id, n, at)
  local mixed = 1
  for _, word in ipairs({string.sub(id, 1, 13), string.sub(id, 15), n, at}) do
    mixed = (mixed + word) % PRIME * FACTOR % PRIME
  end
  return mixed * FACTOR % PRIME / PRIME
end
