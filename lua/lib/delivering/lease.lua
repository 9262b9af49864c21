--- Leases: the right to settle a delivery, until a deadline. The token of a lease is its deadline in ms, and behind it
-- three digits that count grants. So the token of a lease that ended never fits the next lease of the same message.
--
-- @use log budget
local lease = {}

--- Sort deliveries: those that are still held, those that are lost, and those of which nobody knows. `words` are runs of
-- deliveries that came together: their token, how many they are, and their ids.
-- `replay` is not empty where an earlier try may have settled them: `1`, or `back` where it may have given them back.
-- What nobody holds, and is gone unless it was given back, that try has settled: while the lease would hold, nobody else
-- can have ended it. After the end of the lease the message may have expired, or another consumer may have handled it.
function lease.held(q, now, words, replay)
  local held, lost, unknown, at = {}, {}, {}, 1
  while at < #words do
    local token, stop = words[at], at + 1 + words[at + 1]
    local ends = redis.call('ZMSCORE', q.leases, unpack(words, at + 2, stop))
    local open = (tonumber(token) or 0) >= (now + 1) * 1000
    for i = at + 2, stop do
      local found = ends[i - at - 1]
      if open and (found == token or tonumber(found) == tonumber(token) and found) then
        held[#held + 1] = words[i]
      elseif replay == '' or found then
        lost[#lost + 1] = words[i]
      else
        lazy(lease).doubt(q, words[i], replay, open, lost, unknown)
      end
    end
    at = stop + 1
  end
  return held, lost, unknown
end

--- Sort a delivery that nobody holds, where an earlier try may have settled it. Its message is looked for as long as the
-- budget is open; beyond that nobody knows.
function lease.doubt(q, id, replay, open, lost, unknown)
  local looked = replay ~= 'back' and budget.is_open()
  if looked and log.find(q, id) then
    lost[#lost + 1] = id
  elseif not open or replay ~= 'back' and not looked then
    unknown[#unknown + 1] = id
  end
end

--- The token of a lease that ends at `ends`, in ms. `grants` fills the last three digits, so that no two of 1,000 grants
-- in a row give the same token.
function lease.token(ends, grants)
  return string.format('%d', ends * 1000 + grants % 1000)
end

--- Lease these messages.
function lease.grant(q, token, ids)
  local members = {}
  for i = 1, #ids do
    members[2 * i - 1], members[2 * i] = token, ids[i]
  end
  for i = 1, #members, 1000 do
    redis.call('ZADD', q.leases, unpack(members, i, math.min(i + 999, #members)))
  end
end

--- The work is done: forget the messages.
function lease.finish(q, ids)
  log.remove(q, ids)
  redis.call('ZREM', q.leases, unpack(ids))
  if redis.call('EXISTS', q.failures) == 1 then
    redis.call('HDEL', q.failures, unpack(ids))
  end
end
