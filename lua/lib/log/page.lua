--- Pages of all messages in order, in any state: messages of the log, and between them messages of `detached`.
--
-- @use log budget history
local page = {}
local AWAY = 5000

--- Up to `most` messages beyond `after`, as far as the budget goes. Only the last page may be empty.
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

--- The sequences between `after` and `last` (false: no end) that may be in `detached`, in order. The hash has no order
-- of its own; its messages are in any state. `q.cut` says that some of so many may be missing.
function page.detached_seqs(q, after, last, most)
  local from = after == '' and '-inf' or log.ms_digits(after)
  local seqs = redis.call('ZRANGEBYSCORE', q.requeued, from, '+inf', 'LIMIT', 0, most + 1000)
  local between = {}
  for state in each('states') do
    local away = redis.call('ZRANGE', q[state.part], 0, AWAY - 1)
    q.cut = q.cut or #away == AWAY
    for _, seq in ipairs(away) do
      seqs[#seqs + 1] = seq
    end
  end
  for _, seq in ipairs(seqs) do
    if seq > after and (not last or seq < last) then between[#between + 1] = seq end
  end
  table.sort(between)
  return between
end

--- Merge entries of the log and messages of `detached` in order. The page ends where the budget ends.
function page.merge(q, entries, seqs, most)
  local merged, at = {}, 1
  for _, seq in ipairs(seqs) do
    while entries[at] and entries[at][1] < seq and #merged < most do
      merged[#merged + 1], at = entries[at], at + 1
    end
    if #merged == most or #merged > 0 and not budget.is_open() then return merged end
    if not entries[at] or entries[at][1] ~= seq then
      merged[#merged + 1] = log.find_detached(q, seq)
    end
  end
  while entries[at] and #merged < most do
    merged[#merged + 1], at = entries[at], at + 1
  end
  return merged
end

--- Those of the entries that have this message id.
function page.with_id(entries, id)
  local matching = {}
  for _, entry in ipairs(entries) do
    if history.parts(entry[2][1], entry[1]) == id then matching[#matching + 1] = entry end
  end
  return matching
end
