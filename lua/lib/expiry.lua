--- Taking out messages whose time is over, from anywhere in the queue.
-- Own deadlines are in the sorted set `expiry`; retention needs no index, because ids are times.
--
-- @use lifetime ready log dead_letter queue
local expiry = {}

--- Up to `most` ready entries whose time is over. Nothing is written.
-- The first list is past retention and heads the queue; in the second, own deadlines passed, anywhere.
-- The third result says whether more may be over.
function expiry.overdue(q, now, most)
  most = queue.readable(q, most)
  local own = log.read(q, redis.call('ZRANGEBYSCORE', q.expiry, '-inf', now, 'LIMIT', 0, most))
  local kept, all = {}, #own < most
  if q.message_ttl and all then
    local seen = {}
    for _, entry in ipairs(own) do
      seen[entry[1]] = true
    end
    kept, all = ready.read(q, most - #own, now - q.message_ttl, seen)
  end
  return kept, own, not all
end

--- Bury what `overdue` found, in deadline order.
function expiry.bury(q, now, kept, own)
  ready.lose(q, kept, true)
  ready.lose(q, own, false)
  local dead = kept
  for _, entry in ipairs(own) do
    dead[#dead + 1] = entry
  end
  if #own > 0 and q.message_ttl then
    table.sort(dead, function(a, b)
      local first, second = lifetime.deadline(q, a[1], a[2][1]), lifetime.deadline(q, b[1], b[2][1])
      return first < second or (first == second and a[1] < b[1])
    end)
  end
  dead_letter.bury(q, now, 'expired', dead)
  return #dead
end
