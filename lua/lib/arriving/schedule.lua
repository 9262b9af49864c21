--- Scheduled messages: they wait outside of the log until they are due, and then arrive like any message.
--
-- `scheduled` has the first sequence of each by its due time, `upcoming` the envelope and the body as they were sent.
-- `scheduled_ids` has a list of first sequences by message id, and `scheduled_more` those for which it has no room. The
-- field `arrival_at` of the record is a lower bound of the next arrival. Only a sweep lets messages arrive, so no other
-- command needs the keys of arrival.
--
-- @use record envelope batch admission store append log message_ttl wakeup reply reaper_hint queue_lifetime memory
local schedule = {}
local BUDGET = 250
local READ_BYTES = 4194304
local SMALL = 16384
local SEQUENCE = 20
local LISTED = 503
local MOVED = 450
local HELD_BACK = 1000

--- Read a batch: due time, envelope and body of each message. `at` has the due times in ms. `malformed` is the number
-- of the first message that is not well formed.
function schedule.read(now, words)
  local items = {n = #words / 3, words = {}, at = {}, outcome = {}, count = 0, size = 0}
  for i = 1, #words, 3 do
    local at, sent, j = schedule.due(now, words[i]), words[i + 1] or '', (i - 1) / 3 * 2 + 2
    local sign, _, rest = envelope.read_ttl(sent)
    local header_ok = sign and (rest > #sent or envelope.read_header(sent, rest))
    if not at or not header_ok or not words[i + 2] then return {malformed = (i + 2) / 3} end
    items.words[j - 1], items.words[j], items.at[j] = sent, words[i + 2], at
    batch.note_id(items, j, sent)
  end
  return items
end

--- The due time in ms: `+<ms>` from now or `@<ms>`. Nil if it is malformed.
function schedule.due(now, word)
  local sign, ms, last = string.match(word, '^([+@])(%d+)()')
  if sign and last > #word and #ms <= 15 then return sign == '+' and now + ms or tonumber(ms) end
end

--- Let messages wait. The queue is active until the last of them is due. Returns for each `<first sequence> <due>` or
-- `<first sequence> <due> <own deadline>`, or `=` for a duplicate. Own deadlines are those that the options of now
-- would give.
function schedule.put(q, now, items)
  local results, scores, bodies, first, largest, latest = {}, {}, {}, math.huge, 0, now
  local ids, named = {}, {}
  for i = 2, 2 * items.n, 2 do
    local sent, at = items.words[i - 1], items.at[i]
    latest = math.max(latest, at)
    if items.outcome[i] == 'duplicate' then
      results[i / 2] = '='
    else
      local seq = append.next_seq(q, now)
      local text = log.pack({sent, items.words[i]})
      scores[#scores + 1], scores[#scores + 2] = string.format('%d', at), seq
      bodies[#bodies + 1], bodies[#bodies + 2] = seq, text
      local id = schedule.id_of(text)
      if id then
        ids[#ids + 1], named[#named + 1] = id, seq
      end
      first, largest = math.min(first, at), math.max(largest, #text)
      local ttl = message_ttl.resolve(q, at, envelope.read_ttl(sent))
      results[i / 2] = seq .. string.format(' %d', at) .. (ttl and string.format(' %d', at + ttl) or '')
    end
  end
  if #scores > 0 then
    redis.call('HSET', q.upcoming, unpack(bodies))
    redis.call('ZADD', q.scheduled, unpack(scores))
    if #ids > 0 then schedule.add_ids(q, ids, named) end
    if largest > SMALL then redis.call('HSET', q.meta, 'large_scheduled', 1) end
    schedule.expect(q, now, first)
  end
  if q.life then lazy(queue_lifetime).mark_active(q, latest) end
  return results
end

--- The message id in a value of `upcoming`, `<length of envelope>:<envelope><body>`; nil for none.
function schedule.id_of(text)
  local size, length, at = string.match(text, '^(%d+):[+@]?%d*;(%d+);;()')
  local last = at and at + length - 1
  -- behind a short envelope the body may look like an id
  return last and last <= #size + 1 + size and string.sub(text, at, last) or nil
end

--- Note first sequences under their ids: in the list of the id while it is short, else in `scheduled_more`.
function schedule.add_ids(q, ids, seqs)
  local distinct, added, words, moved = {}, {}, {}, false
  for i, id in ipairs(ids) do
    if not added[id] then distinct[#distinct + 1] = id end
    added[id] = added[id] and added[id] .. ' ' .. seqs[i] or seqs[i]
  end
  for i, list in ipairs(redis.call('HMGET', q.scheduled_ids, unpack(distinct))) do
    local id = distinct[i]
    local longer, is_old = list and list .. ' ' .. added[id] or added[id], list and #list > LISTED
    if #longer <= LISTED or is_old and moved then
      words[#words + 1], words[#words + 2] = id, longer
    else
      lazy(schedule).shorten(q, id, longer)
      moved = moved or is_old
    end
  end
  if #words > 0 then redis.call('HSET', q.scheduled_ids, unpack(words)) end
end

--- The dedup name of an id. In `scheduled_more` a first sequence follows it.
function schedule.name(id)
  return ';' .. #id .. ';;' .. id
end

--- Move the end of a list that is too long to `scheduled_more`. An earlier version made lists of any length: each call
-- shortens one of them. Messages that have left it meanwhile are forgotten.
function schedule.shorten(q, id, list)
  local from, kept, words = math.max(LISTED + 1, #list + 1 - MOVED * (SEQUENCE + 1)), {}, {}
  local seqs = schedule.split(string.sub(list, 1, LISTED + 1) .. string.sub(list, from + 1))
  for i, at in ipairs(redis.call('ZMSCORE', q.scheduled, unpack(seqs))) do
    if at and (i - 1) * (SEQUENCE + 1) < LISTED then
      kept[#kept + 1] = seqs[i]
    elseif at then
      words[#words + 1], words[#words + 2] = '0', schedule.name(id) .. seqs[i]
    end
  end
  if from > LISTED + 1 then kept[#kept + 1] = string.sub(list, LISTED + 2, from - 1) end
  memory.may_pass(q)
  if #kept > 0 then
    redis.call('HSET', q.scheduled_ids, id, table.concat(kept, ' '))
  else
    redis.call('HDEL', q.scheduled_ids, id)
  end
  if #words > 0 then redis.call('ZADD', q.scheduled_more, unpack(words)) end
end

--- The next first sequences with a message id, behind `after` (empty: from the beginning). The second result is the
-- place to go on from, false at the end. A sequence stands for the message without an id that has it.
function schedule.find(q, id, after)
  local seqs, name, gone = {}, schedule.name(id), {}
  if after == '' then
    local list = redis.call('HGET', q.scheduled_ids, id)
    if list and #list > LISTED then
      lazy(schedule).shorten(q, id, list)
      return seqs, ''
    end
    if list then seqs = schedule.split(list) end
  end
  local from, most = (after == '' and '[' or '(') .. name .. after, BUDGET - #seqs
  local members = redis.call('ZRANGEBYLEX', q.scheduled_more, from, '(' .. name .. ':', 'LIMIT', 0, most)
  local further = {}
  for i, member in ipairs(members) do
    further[i] = string.sub(member, #name + 1)
  end
  for i, at in ipairs(#further > 0 and redis.call('ZMSCORE', q.scheduled, unpack(further)) or {}) do
    if at then
      seqs[#seqs + 1] = further[i]
    else -- an earlier version let it arrive
      gone[#gone + 1] = members[i]
    end
  end
  if #gone > 0 then redis.call('ZREM', q.scheduled_more, unpack(gone)) end
  if #seqs == 0 and after == '' and redis.call('HEXISTS', q.upcoming, id) == 1 then seqs[1] = id end
  return seqs, #members == most and further[most]
end

--- The sequences of a list. All have one length, and a search would take three times as long.
function schedule.split(list)
  local seqs = {}
  for i = 1, #list, SEQUENCE + 1 do
    seqs[#seqs + 1] = string.sub(list, i, i + SEQUENCE - 1)
  end
  return seqs
end

--- Cancel messages with an id, as `find` does. Returns their number, and whether there may be more.
function schedule.cancel(q, id)
  local seqs, place = schedule.find(q, id, '')
  local n = schedule.readable(q, seqs, 1)
  if n == 0 then return 0, place end
  local some = {unpack(seqs, 1, n)}
  schedule.release(q, some, seqs[1] == id and redis.call('HMGET', q.upcoming, unpack(some)), id)
  return n, place or n < #seqs
end

--- Take messages out, as `take` does. An id that one of them has stored in the window of the queue is free again.
function schedule.release(q, seqs, texts, id)
  local ids, named = schedule.take(q, seqs, texts, id)
  local names, own, free = {}, {}, {}
  for i, one in ipairs(ids) do
    names[i] = schedule.name(one)
  end
  for seq, one in pairs(named) do
    own[schedule.name(one) .. log.ms_digits(seq)] = true
  end
  for i, at in ipairs(#names > 0 and redis.call('ZMSCORE', q.dedup, unpack(names)) or {}) do
    if at and own[names[i] .. at] then free[#free + 1] = names[i] end
  end
  if #free > 0 then redis.call('ZREM', q.dedup, unpack(free)) end
end

--- Expect an arrival at `at`. A consumer that waits must know of it, if it is the next thing to happen: it is rung,
-- looks, and waits until then. An arrival that is due already is for the caller: it sweeps.
function schedule.expect(q, now, at)
  local known = tonumber(redis.call('HGET', q.meta, 'arrival_at'))
  if not known or at < known then redis.call('HSET', q.meta, 'arrival_at', string.format('%d', at)) end
  local is_next = not q.due_at or at < q.due_at
  record.schedule_sweep(q, at)
  if at <= now then
    reply.note(q, 'sweep', reaper_hint.queue_name(q.meta))
  elseif is_next and not q.passes_on then
    wakeup.ring(q, now)
  end
end

--- Take messages out. `texts` are their values of `upcoming`; without them all have the `id`. Returns the ids that they
-- had, and the id of each first sequence.
function schedule.take(q, seqs, texts, id)
  local ids, seen, named, count = {}, {}, {}, 0
  redis.call('ZREM', q.scheduled, unpack(seqs))
  redis.call('HDEL', q.upcoming, unpack(seqs))
  for i, seq in ipairs(seqs) do
    local own = texts and schedule.id_of(texts[i] or '') or not texts and id
    if own then
      named[seq], count = own, count + 1
      if not seen[own] then
        ids[#ids + 1], seen[own] = own, true
      end
    end
  end
  if count > 0 then schedule.forget_ids(q, ids, named, count) end
  return ids, named
end

--- Forget first sequences under their ids. `count` is their number. What is in no list is in `scheduled_more`.
function schedule.forget_ids(q, ids, named, count)
  local over, shorter, moved = {}, {}, false
  for i, list in ipairs(redis.call('HMGET', q.scheduled_ids, unpack(ids))) do
    if list and named[list] then
      over[#over + 1], count = ids[i], count - 1
    elseif list and #list <= LISTED then
      local left = {}
      for _, seq in ipairs(schedule.split(list)) do
        if named[seq] then
          count = count - 1
        else
          left[#left + 1] = seq
        end
      end
      if #left == 0 then
        over[#over + 1] = ids[i]
      else
        shorter[#shorter + 1], shorter[#shorter + 2] = ids[i], table.concat(left, ' ')
      end
    elseif list and not moved then
      lazy(schedule).shorten(q, ids[i], list)
      moved = true
    end
  end
  if #over > 0 then redis.call('HDEL', q.scheduled_ids, unpack(over)) end
  if #shorter > 0 then redis.call('HSET', q.scheduled_ids, unpack(shorter)) end
  if count == 0 then return end
  local members = {}
  for seq, id in pairs(named) do
    members[#members + 1] = schedule.name(id) .. seq
  end
  redis.call('ZREM', q.scheduled_more, unpack(members))
end

--- The first messages that are due at `upto` (`+inf`: all), in the order of due times: their first sequences, due times
-- and values of `upcoming`, as far as one call may read. The last result is true if more may be due. A sequence without
-- a value is half a message: it goes.
function schedule.first(q, upto, most)
  local members = redis.call('ZRANGEBYSCORE', q.scheduled, '-inf', upto, 'WITHSCORES', 'LIMIT', 0, most)
  local n = schedule.readable(q, members, 2)
  local seqs, at = {}, {}
  for i = 1, n do
    seqs[i], at[i] = members[2 * i - 1], tonumber(members[2 * i])
  end
  local texts, halves = n > 0 and redis.call('HMGET', q.upcoming, unpack(seqs)) or {}, {}
  for i = n, 1, -1 do
    if not texts[i] then
      halves[#halves + 1] = seqs[i]
      for _, column in ipairs({seqs, at, texts}) do table.remove(column, i) end
    end
  end
  if #halves > 0 then redis.call('ZREM', q.scheduled, unpack(halves)) end
  return seqs, at, texts, #members == 2 * most or 2 * n < #members
end

--- The number of messages, from the first one on, that one call may read or free. Every `step`-th word is a sequence.
function schedule.readable(q, words, step)
  if redis.call('HGET', q.meta, 'large_scheduled') ~= '1' then return #words / step end
  local size = 0
  for i = 1, #words, step do
    size = size + redis.call('HSTRLEN', q.upcoming, words[i])
    if size >= READ_BYTES then return (i - 1) / step + 1 end
  end
  return #words / step
end

--- Take the first messages out, at most `most`, whenever they are due: as entries, with their deadlines.
function schedule.take_first(q, now, most)
  return schedule.take_out(q, now, schedule.first(q, '+inf', most))
end

--- Take these messages out: as entries, with their deadlines.
function schedule.take_out(q, now, seqs, at, texts)
  local items, entries = schedule.items(q, now, seqs, at, texts), {}
  for i, seq in ipairs(seqs) do
    entries[i] = {seq, {items.words[2 * i - 1], items.words[2 * i]}}
  end
  if #seqs > 0 then schedule.take(q, seqs, texts) end
  return entries
end

--- These messages as arriving ones: TTLs count from the due times, by the options of now. What was due earlier lives no
-- longer for it.
function schedule.items(q, now, seqs, at, texts)
  local items = {n = #seqs, words = {}, deadline = {}, outcome = {}, count = 0, size = 0, head = '', least = math.huge}
  for i, seq in ipairs(seqs) do
    local j, parts = 2 * i, log.unpack(texts[i])
    items.words[j] = parts[2]
    if not batch.read_envelope(q, items, j, parts[1], at[i], false) then -- another program damaged it
      items.head, items.least = '', math.huge
      batch.read_envelope(q, items, j, '', at[i], false)
    end
    local late = q.message_ttl and at[i] < now and at[i] + q.message_ttl
    local deadline = items.deadline[j]
    if late and (not deadline or late < deadline) then deadline = late end
    items.deadline[j] = deadline
    items.words[j - 1] = schedule.header(deadline, string.sub(items.envelope, items.header_at), seq)
    if not items.outcome[j] and deadline and deadline <= now then items.outcome[j] = 'late' end
    if not items.outcome[j] then items.count, items.size = items.count + 1, items.size + #parts[2] end
  end
  return items
end

--- These messages as a batch for `put` in another queue, with their first sequences as ids if they have none.
function schedule.batch(seqs, at, texts)
  local items = {n = #seqs, words = {}, at = {}, outcome = {}}
  for i, seq in ipairs(seqs) do
    local j, parts = 2 * i, log.unpack(texts[i])
    local _, _, rest = envelope.read_ttl(parts[1])
    rest = rest or 1 -- another program damaged it
    items.words[j - 1] = string.sub(parts[1], 1, rest - 1) .. schedule.header(nil, string.sub(parts[1], rest), seq)
    items.words[j], items.at[j] = parts[2], at[i]
  end
  return items
end

--- The packed header of a message that arrives, with the first sequence as its id if it has none. `rest` is its
-- envelope behind the TTL.
function schedule.header(deadline, rest, seq)
  if string.sub(rest, 1, 3) == ';;;' or rest == '' then rest = ';20;;' .. seq .. string.sub(rest, 4) end
  return (deadline and string.format('%.0f', deadline) or '') .. rest
end

--- Let due messages arrive. Returns their number, or nil if none is due, and whether more may be due. If it returns a
-- number, the record is saved.
function schedule.activate(q, now)
  if not q.arrival_at or q.arrival_at > now then return nil end
  local seqs, at, texts, more = schedule.first(q, now, BUDGET)
  local items, n, held = schedule.items(q, now, seqs, at, texts), #seqs, false
  if n > 0 then
    local plan = admission.decide(q, now, items)
    if not plan then
      redis.call('HSET', q.meta, 'due_at', string.format('%d', now))
      return 0, true
    end
    n, held = schedule.admitted(q, items, seqs, texts)
    for i = #seqs, n + 1, -1 do seqs[i] = nil end
    if n > 0 then
      schedule.take(q, seqs, texts)
      store.all(q, now, items)
      record.count(q, 'activated', n)
    end
    schedule.next_arrival(q, now, held, more)
    admission.finish(q, now, items, plan, tonumber(redis.call('HGET', q.meta, 'enqueued')) + n)
  else
    schedule.next_arrival(q, now, false, more)
    record.save(q)
  end
  return n, more and not held
end

--- Take out of the batch what a full queue holds back, unless refused messages are dead-lettered: the first one without
-- room and all later ones stay scheduled, so none overtakes. Expired ones among them die. Returns the number of those
-- that are left in the batch, and whether any are held back.
function schedule.admitted(q, items, seqs, texts)
  local n, held = 0, false
  if q.drops_head or q.dead_letter_refused and q.targets.maxlen then return items.n, false end
  for i = 1, items.n do
    local j, outcome, to = 2 * i, items.outcome[2 * i], 2 * n + 2
    held = held or outcome == 'refused'
    if not held or outcome == 'late' then
      n = n + 1
      seqs[n], texts[n], items.deadline[to], items.outcome[to] = seqs[i], texts[i], items.deadline[j], outcome
      items.words[to - 1], items.words[to] = items.words[j - 1], items.words[j]
    elseif not outcome then
      items.count, items.size = items.count - 1, items.size - #items.words[j]
    end
  end
  items.n = n
  return n, held
end

--- Note when the next message arrives. While the queue is full (`held`), it is tried again each second.
function schedule.next_arrival(q, now, held, more)
  local first = tonumber(redis.call('ZRANGE', q.scheduled, 0, 0, 'WITHSCORES')[2])
  if first and held then
    first = now + HELD_BACK
  elseif first and more then
    first = now
  end
  redis.call('HSET', q.meta, 'arrival_at', first and string.format('%d', first) or '', 'held_back', held and 1 or 0)
  if not first then
    redis.call('HDEL', q.meta, 'large_scheduled')
    redis.call('UNLINK', q.scheduled_ids, q.scheduled_more) -- clients of an earlier version leave sequences behind
  end
  q.arrival_at = first
  if first then record.schedule_sweep(q, first) end
end
