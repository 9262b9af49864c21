--- A page of all messages in order, whatever their state: those of the log, and between them those of `detached`.
--
-- @use log budget
local page = {}

--- Up to `most` messages beyond `after`, as far as the budget goes. A page is empty only where nothing is left.
function page.read(q, after, most)
  local moved = redis.call('HLEN', q.detached) > 0
  if not moved then
    return (log.range(q, after == '' and '0-0' or after, '+', most))
  end
  budget.keep_half()
  local entries, all = log.range(q, after == '' and '0-0' or after, '+', most)
  budget.release()
  return page.merge(q, entries, page.detached_seqs(q, after, not all and entries[#entries][1], most), most)
end

--- The ids that may be in `detached`, from `after` to `last` (false: to the end), in order. The hash itself has none; what
-- is in it is ready, leased or delayed.
function page.detached_seqs(q, after, last, most)
  local from = after == '' and '-inf' or string.sub(after, 1, 13)
  local ids, found = redis.call('ZRANGEBYSCORE', q.requeued, from, '+inf', 'LIMIT', 0, most + 1000), {}
  for _, set in ipairs({q.leases, q.delayed}) do
    for _, id in ipairs(redis.call('ZRANGE', set, 0, 4999)) do
      ids[#ids + 1] = id
    end
  end
  for _, id in ipairs(ids) do
    if id > after and (not last or id < last) then found[#found + 1] = id end
  end
  table.sort(found)
  return found
end

--- The first of both, in order. Where the budget ends, the page does.
function page.merge(q, entries, ids, most)
  local merged, at = {}, 1
  for _, id in ipairs(ids) do
    while entries[at] and entries[at][1] < id and #merged < most do
      merged[#merged + 1], at = entries[at], at + 1
    end
    if #merged == most or #merged > 0 and not budget.is_open() then return merged end
    if not entries[at] or entries[at][1] ~= id then
      local packed = redis.call('HGET', q.detached, id)
      local entry = packed and {id, log.unpack(packed)}
      if entry then
        budget.spend({entry})
        merged[#merged + 1] = entry
      end
    end
  end
  while entries[at] and #merged < most do
    merged[#merged + 1], at = entries[at], at + 1
  end
  return merged
end
