--- Storing batches in which messages have different outcomes.
--
-- @use append record handoff
local store = {}

--- Store a batch without its dead and refused messages. Returns the result of each message for the client.
function store.all(q, now, items)
  if not next(items.outcome) and not next(items.deadline) then
    return append.all(q, now, items.words, 2, items.n, '')
  end
  local deadlines, results = {}, {}
  for i = 2, 2 * items.n, 2 do
    local seq, deadline = store.one(q, now, items, i)
    if deadline and not items.outcome[i] then
      deadlines[#deadlines + 1], deadlines[#deadlines + 2] = deadline, seq
      record.schedule_sweep(q, deadline)
    end
    local limit = items.limit and items.limit[i]
    results[i / 2] = limit and '!' .. limit or deadline and seq .. string.format(' %d', deadline) or seq
  end
  if #deadlines > 0 then
    redis.call('ZADD', q.expiry, unpack(deadlines))
  end
  return results
end

--- Store one message according to its outcome. Returns its result and its deadline. The result is its sequence, with
-- `~` before it for a message that is dead on arrival.
function store.one(q, now, items, i)
  local outcome, header, body = items.outcome[i], items.words[i - 1], items.words[i]
  if outcome == 'duplicate' then
    return '='
  elseif not outcome then
    return append.one(q, now, header, body), items.deadline[i]
  elseif outcome == 'handed' then
    return lazy(handoff).give(q, now, header, body), items.deadline[i]
  end
  items.seq[i] = append.next_seq(q, now)
  return '~' .. items.seq[i], items.deadline[i] -- for a refused message the result is its limit
end
