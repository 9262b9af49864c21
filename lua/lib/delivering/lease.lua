--- Leases: the right to settle a delivery, until a deadline.
--
-- The token of a lease is its deadline in ms and three digits that count grants. So the token of an ended lease never
-- fits the next lease of the same message.
--
-- @use log budget
local lease = {}
local MANY = 16

--- Sort deliveries into held ones, lost ones and unknown ones. `words` are runs of deliveries with one token: the
-- token, their number, their sequences. `replay` is not empty if an earlier try may have settled them: `1`, or `back`
-- if that try may have given them back.
--
-- If a message is gone while its lease would still hold, the earlier try has settled it: nobody else can end the lease.
-- After the end of the lease the message may have expired, or another consumer may have settled it.
function lease.held(q, now, words, replay)
  local held, lost, unknown, at = {}, {}, {}, 1
  while at < #words do
    local token, stop = words[at], at + 1 + words[at + 1]
    local open = (tonumber(token) or 0) >= (now + 1) * 1000
    local whole = open and stop - at > MANY and lazy(lease).are_next(q, token, words, at + 2, stop)
    local ends = whole and {} or redis.call('ZMSCORE', q.leases, unpack(words, at + 2, stop))
    for i = at + 2, stop do
      local ends_at = whole and token or ends[i - at - 1]
      if open and (ends_at == token or tonumber(ends_at) == tonumber(token) and ends_at) then
        held[#held + 1] = words[i]
      elseif replay == '' or ends_at then
        lost[#lost + 1] = words[i]
      else
        lazy(lease).doubt(q, words[i], replay, open, lost, unknown)
      end
    end
    at = stop + 1
  end
  return held, lost, unknown
end

--- Return whether these deliveries are the next ones of their token, in order, and all held. Redis formats no score for
-- this answer, which is the dearest part of ZMSCORE.
function lease.are_next(q, token, words, first, last)
  local score = string.format('%.17g', tonumber(token))
  local seqs = redis.call('ZRANGEBYSCORE', q.leases, score, score, 'LIMIT', 0, last - first + 1)
  for i = first, last do
    if seqs[i - first + 1] ~= words[i] then return false end
  end
  return true
end

--- Sort a delivery without a lease that an earlier try may have settled. Beyond the budget the message is not looked
-- for, so the delivery is unknown.
function lease.doubt(q, seq, replay, open, lost, unknown)
  local looked = replay ~= 'back' and budget.is_open()
  if looked and log.find(q, seq) then
    lost[#lost + 1] = seq
  elseif not open or replay ~= 'back' and not looked then
    unknown[#unknown + 1] = seq
  end
end

--- The token of a lease until `ends` in ms. `grants` fills its last three digits: 1,000 grants in a row differ.
function lease.token(ends, grants)
  return string.format('%d', ends * 1000 + grants % 1000)
end

--- Lease messages. Redis keeps up to 128 members as a list of pairs, and each search walks through it: that time rises
-- with the square of a batch. A long member makes it a skip list, until the set is empty. It leaves at once.
function lease.grant(q, token, seqs)
  local long = #seqs > MANY and string.rep('-', 100)
  local members = long and {token, long} or {}
  local at = #members
  for i = 1, #seqs do
    members[at + 2 * i - 1], members[at + 2 * i] = token, seqs[i]
  end
  for i = 1, #members, 1000 do
    redis.call('ZADD', q.leases, unpack(members, i, math.min(i + 999, #members)))
  end
  if long then redis.call('ZREM', q.leases, long) end
end

--- Finish messages: the work is done, so they are removed.
function lease.finish(q, seqs)
  log.remove(q, seqs)
  redis.call('ZREM', q.leases, unpack(seqs))
  if redis.call('EXISTS', q.failures) == 1 then
    redis.call('HDEL', q.failures, unpack(seqs))
  end
end
