--- Mixed batches: each message goes where its fate leads it.
--
-- @use append record handoff
local store = {}

--- Store a mixed batch: all but those that are dead or refused. Returns what the client is told of each.
function store.all(q, now, items)
  if not next(items.fate) and not next(items.own) then
    return append.all(q, now, items.words, 2, items.n)
  end
  local deadlines, results = {}, {}
  for i = 2, 2 * items.n, 2 do
    local id, own = store.one(q, now, items, i)
    if own and not items.fate[i] then
      deadlines[#deadlines + 1], deadlines[#deadlines + 2] = own, id
      record.schedule_sweep(q, own)
    end
    results[i / 2] = items.limit and items.limit[i] and '!' .. items.limit[i] or own and id .. string.format(' %d', own) or id
  end
  if #deadlines > 0 then
    redis.call('ZADD', q.expiry, unpack(deadlines))
  end
  return results
end

--- Put one message where its fate leads it. Returns what the client is told: its id, with `~` before it where it was dead
-- on arrival, and its own deadline.
function store.one(q, now, items, i)
  local fate, header, body = items.fate[i], items.words[i - 1], items.words[i]
  if fate == 'duplicate' then
    return '='
  elseif not fate then
    return append.one(q, now, header, body), items.own[i]
  elseif fate == 'handed' then
    return lazy(handoff).give(q, now, header, body), items.own[i]
  end
  items.id[i] = append.next_seq(q, now)
  return '~' .. items.id[i], items.own[i] -- of a refused one only the limit is told
end
