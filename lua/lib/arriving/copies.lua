--- Copies of published messages: one in each queue of the call that gets the message, under one id, with a deadline by
-- the options of that queue. `into` is a queue that gets copies, a table like `q`. All are planned before the first
-- write.
--
-- @use record batch schedule store admission append limits dedup wakeup dead_letter ready message_ttl history purge
-- @use memory log message
local copies = {}
local WORDS = 5

--- The queues that get copies. Each has five words: name, version, the number of its keys and those of its targets,
-- targets, and the numbers of its messages (empty: all). `with_keys` makes the table of a queue; its keys stand behind
-- `at`; those of targets stand behind the `most` keys of a queue. Notes of all are notes of the call.
function copies.bind(q, keys, at, arg, with_keys, most)
  local list, none = {}, {}
  q.notes = {}
  for w = 0, WORDS * (arg.count - 1), WORDS do
    local name, version, size, targets, numbers = unpack(arg.words, w + 1, w + WORDS)
    size = tonumber(size)
    local into = with_keys(at, size)
    into.name, into.version, into.numbers, into.notes = name, version, numbers, q.notes
    into.targets = targets ~= '' and lazy(dead_letter).bind(into, keys, at + most, targets) or none
    list[#list + 1], at = into, at + size
  end
  return list
end

--- Read all records. Returns the names of the queues that are gone, have ended, or have other options. An arrival is no
-- use of a queue that others publish to: its lifetime goes on.
function copies.open(list, now)
  local stale = {}
  for _, into in ipairs(list) do
    local refusal, enqueued = record.open(into, into.version, now, 'enqueued')
    if refusal then stale[#stale + 1] = into.name end
    into.enqueued_before = enqueued
    if into.life then into.life = nil end
  end
  return stale
end

--- Read the batch by the options of the topic, and make it the one that copies start from: an envelope becomes the
-- header behind the deadline, with an id, and `life` has sign, TTL and own deadline of a message with a TTL, by its
-- number. Nothing is written, but windows may be closed (`q.retry`).
function copies.of_batch(q, now, words, count)
  local items = batch.read(q, now, {unpack(words, WORDS * count + 1)}, 2, '')
  if items.malformed or q.retry then return items end
  local sent, results = items.words, {}
  items.results, items.life, items.gets, items.alike = results, {}, {}, {}
  for k = 1, items.n do
    if items.outcome[2 * k] == 'duplicate' then
      results[k] = '='
    else
      local seq = append.next_seq(q, now)
      sent[2 * k - 1], results[k] = copies.rest(sent[2 * k - 1], seq), seq
      if items.deadline[2 * k] or q.message_ttl then lazy(copies).limit_ttl(q, now, items, k, seq) end
    end
  end
  copies.share(items)
  return items
end

--- Where no message has a TTL, a death or an outcome, the batch is that of each queue that gets all messages and has no
-- options that scripts read. `alike` has the batches of such queues by the numbers of their messages.
function copies.share(items)
  if not next(items.life) and not next(items.outcome) then items.alike[''] = items end
end

--- The header of a copy behind the deadline: a message without an id gets its sequence as id.
function copies.rest(header, seq)
  if header == '' or header == ';;;' then return ';20;;' .. seq end
  return lazy(schedule).header(nil, string.sub(header, string.find(header, '%D') or #header + 1), seq)
end

--- Find the TTL that the copies of a message start from.
function copies.limit_ttl(q, now, items, k, seq)
  local deadline, late = items.deadline[2 * k], items.outcome[2 * k] == 'late'
  local ttl = deadline and deadline - now
  if deadline then items.results[k] = seq .. string.format(' %d', deadline) end
  if q.message_ttl and (not ttl or ttl > q.message_ttl) then ttl = q.message_ttl end
  items.life[k] = {late and '@' or '+', late and deadline or ttl, deadline}
end

--- Read messages that wait at the topic into such a batch; `deaths` has those of dead letters. Nil and the
-- mark if they are not the first ready ones, if one of them has expired, or if the mark is not the `known` one. The
-- message with a mark goes first, also if earlier ones came back since. A mark of a message that is gone is none.
function copies.of_entries(q, now, words, count, known)
  local seqs = {unpack(words, WORDS * count + 1)}
  record.open_rest(q)
  local fan_at = redis.call('HGET', q.meta, 'fan_at') or ''
  local marked = fan_at ~= '' and log.find(q, string.match(fan_at, '^%S+')) or nil
  local mark = marked and fan_at or ''
  if mark ~= known then return nil, mark end
  local entries = marked and {marked} or ready.between(q, '0000000000000-0', seqs[#seqs], #seqs)
  if not entries.dense then table.sort(entries, function(a, b) return a[1] < b[1] end) end
  local items = {n = #seqs, entries = entries, words = {}, life = {}, deaths = {}, outcome = {}, deadline = {},
    results = {}, gets = {}, alike = {}, size = 0, cycles = 0, fan_at = fan_at}
  for k, seq in ipairs(seqs) do
    local entry = entries[k]
    if not entry or entry[1] ~= seq then return nil, mark end
    local header, body = unpack(entry[2])
    local deadline = message_ttl.deadline(q, seq, header)
    if deadline and deadline <= now then return nil, mark end
    local _, deaths = history.parts(header, seq)
    items.words[2 * k - 1], items.words[2 * k], items.size = copies.rest(header, seq), body, items.size + #body
    if deaths ~= '' then items.deaths[k] = history.read(deaths) end
    if deadline then items.life[k] = {'+', deadline - now, message.deadline(header)} end
  end
  items.count = items.n
  if not next(items.deaths) then copies.share(items) end
  return items
end

--- Make the batch of each queue, and the plan for one in which not all messages just find room. Returns whether there
-- is a plan, and whether a queue has to make room first.
function copies.plan(list, now, items)
  local planned, retry = false, false
  for _, into in ipairs(list) do
    into.items = copies.batch_of(into, now, items)
    local own = into.items
    local limited = into.max_length or into.max_length_bytes
    if own.count < own.n or limited and lazy(limits).would_exceed(into, own.count, own.size) then
      lazy(record).open_rest(into)
      into.plan = lazy(admission).plan(into, now, own)
      planned, retry = true, retry or into.plan.retry
    end
  end
  return planned, retry
end

--- The messages of one queue, as a batch. `number` has their places in the batch of the call.
function copies.batch_of(into, now, items)
  local own = not into.has_options and items.alike[into.numbers]
  if own then return own end
  own = {n = 0, words = {}, number = {}, deadline = {}, outcome = {}, count = 0, size = 0}
  if into.numbers == '' then
    for k = 1, items.n do copies.add(into, now, items, k, own) end
  else
    for k in string.gmatch(into.numbers, '%d+') do copies.add(into, now, items, tonumber(k), own) end
  end
  if own.dedup_name then lazy(dedup).mark_duplicates(into, now, own) end
  if not (into.has_options or next(own.outcome) or items.deaths and next(items.deaths)) then
    items.alike[into.numbers] = own
  end
  return own
end

--- Add message `k` to the batch of a queue, unless it is a duplicate at the topic, or a dead letter in a circle.
function copies.add(into, now, items, k, own)
  if items.outcome[2 * k] == 'duplicate' then return end
  items.gets[k] = true
  if items.deaths and items.deaths[k] and lazy(history).in_run(into.name, items.deaths[k]) then
    items.cycles = items.cycles + 1
    return
  end
  own.n = own.n + 1
  local i = 2 * own.n
  own.number[own.n], own.words[i - 1], own.words[i] = k, items.words[2 * k - 1], items.words[2 * k]
  local life = items.life[k]
  if life or into.has_options then
    local sign, ttl, own_deadline = unpack(life or {})
    local default = into.default_ttl
    if default and not own_deadline and ttl and ttl > default then ttl = default end
    own.envelope, own.header_at, own.ttl_sign, own.ttl_ms = own.words[i - 1], 1, sign or '', ttl
    lazy(batch).set_deadline(into, own, i, now)
  end
  if into.window then batch.note_id(own, i, own.words[i - 1]) end
  if not own.outcome[i] then
    own.count, own.size = own.count + 1, own.size + #own.words[i]
  end
end

--- The first message of the call that a queue refuses: the queue, the limit, and the number of the message.
-- Nil if there is none. Queues that drop or bury what finds no room refuse nobody; they bury if they have a target.
function copies.refusing(list)
  local name, limit, number
  for _, into in ipairs(list) do
    local buries = into.dead_letter_refused and into.targets.maxlen
    if into.plan and not into.plan.retry and not into.drops_head and not buries then
      for i = 2, 2 * into.items.n, 2 do
        local k = into.items.number[i / 2]
        if into.items.limit[i] and (not number or k < number) then
          name, limit, number = into.name, into.items.limit[i], k
        end
      end
    end
  end
  return name, limit, number
end

--- Make room in the first queue whose plan asks for it. The client repeats the call, which plans all queues anew.
function copies.make_room(list, now)
  for _, into in ipairs(list) do
    if into.plan and into.plan.retry then
      return lazy(admission).make_way(into, now, into.plan)
    end
  end
end

--- Write the counters and the duplicates of the topic. Its record is saved then: a copy may bury into it.
function copies.save_source(q, now, list, items, enqueued, made, unrouted)
  local arrived, routed, number = 0, copies.count(list, items)
  for k = 1, items.n do
    if items.results[k] ~= '=' then arrived = arrived + 1 end
  end
  made = string.format('%d', (made or 0) + number)
  if arrived > routed then
    unrouted = string.format('%d', (unrouted or 0) + arrived - routed)
    record.save_arrivals(q, string.format('%d', enqueued + arrived), 'copies', made, 'unrouted', unrouted)
  else
    record.save_arrivals(q, string.format('%d', enqueued + arrived), 'copies', made)
  end
  if items.new_names then lazy(dedup).note(q, now, items) end
end

--- The number of messages that a queue gets, and that of all copies.
function copies.count(list, items)
  local routed, number = 0, 0
  for k = 1, items.n do
    if items.gets[k] then routed = routed + 1 end
  end
  for _, into in ipairs(list) do
    number = number + into.items.n
    if into.items == items then routed = items.n end
  end
  return routed, number
end

--- Take messages that were passed on out of the log, or note up to which queue the copies of one are stored. The record
-- of the topic is saved then, as by `save_source`.
function copies.leave(q, items, known, mark)
  memory.must_ask(q)
  if mark ~= '' then
    redis.call('HSET', q.meta, 'fan_at', mark)
  else
    purge.take(q, items.entries, true)
    if items.fan_at ~= '' then redis.call('HDEL', q.meta, 'fan_at') end
  end
  local routed, number = copies.count(q.copies, items)
  record.count(q, 'copies', number)
  if known == '' then record.count(q, 'unrouted', items.n - routed) end
  if items.cycles > 0 then record.count(q, 'dropped:cycle', items.cycles) end
  record.save(q)
end

--- Store the copies of one queue, as an enqueue does.
function copies.store(into, now)
  local items, plan = into.items, into.plan
  if items.n == 0 then return end
  if plan then lazy(admission).make_way(into, now, plan) end
  if next(items.outcome) or next(items.deadline) then
    lazy(store).all(into, now, items)
  else
    append.all(into, now, items.words, 2, items.n, '')
  end
  local repeated = into.window and lazy(dedup).note(into, now, items) or 0
  local enqueued = into.enqueued_before + items.n - repeated
  if plan then
    lazy(admission).finish(into, now, items, plan, enqueued)
  else
    into.ready_bytes = into.ready_bytes + items.size
    if into.message_ttl then lazy(record).schedule_sweep(into, now + into.message_ttl) end
    wakeup.ring(into, now)
    record.save_arrivals(into, string.format('%d', enqueued))
  end
end
