--- The pause of a message after a failed delivery, as the options of the queue set it: longer after each failure.
--
-- These options are read only after a failed delivery, so they cost other calls nothing.
--
-- @use log
local pause = {}
local LONGEST = 315360000000
local PRIME, FACTOR = 2147483647, 48271

--- The end of the pause of each message, by sequence; nil for no pause. A delay of the caller replaces the pause. The
-- pause begins at the failure: for a lease that ran out, at its end, however late a call notices.
function pause.ends(q, now, seqs, failed, mode)
  local ends, rule = {}, not mode.delay and mode.counted == 1 and pause.rule(q)
  local tokens = rule and mode.ran_out and redis.call('ZMSCORE', q.leases, unpack(seqs))
  for i, seq in ipairs(seqs) do
    if rule then
      local at = tokens and math.floor(tokens[i] / 1000) or now
      ends[seq] = at + lazy(pause).after(rule, seq, (failed[seq] or 0) + 1, at)
    elseif mode.delay then
      ends[seq] = now + mode.delay
    end
  end
  return ends
end

--- The options of the pause; false if the queue has none.
function pause.rule(q)
  local delay, multiplier, max_delay, jitter = unpack(redis.call('HMGET', q.meta, 'redelivery_delay',
    'redelivery_multiplier', 'redelivery_max_delay', 'redelivery_jitter'))
  return delay and {delay = tonumber(delay), multiplier = tonumber(multiplier or 1),
    most = tonumber(max_delay or LONGEST), jitter = tonumber(jitter or 0)}
end

--- The pause in ms after failed delivery number `n`, which failed at `at`. Jitter only shortens it. The power may be
-- infinite; its minimum with `most` is not.
function pause.after(rule, seq, n, at)
  local ms = math.min(rule.most, rule.delay * rule.multiplier ^ (n - 1))
  if rule.jitter > 0 then
    ms = ms * (1 - rule.jitter * pause.share(seq, n, at))
  end
  return math.max(1, math.floor(ms))
end

--- A number from 0 to below 1, spread evenly over messages and failures. It is computed, since Redis 6.2 gives each run
-- of a script the same random numbers.
function pause.share(seq, n, at)
  local mixed = 1
  for _, word in ipairs({log.ms(seq), string.sub(seq, 15), n, at}) do
    mixed = (mixed + word) % PRIME * FACTOR % PRIME
  end
  return mixed * FACTOR % PRIME / PRIME
end
