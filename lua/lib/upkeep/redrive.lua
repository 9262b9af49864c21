--- Redriving dead letters: they leave the queue that has them (`from`) and arrive in another one (`q`). Any message may
-- move so.
--
-- @use record purge message message_ttl history log requeue wakeup budget queue_lifetime
local redrive = {}
local SMALL = 16384

--- The ready dead letters among `seqs` that are not expired, in order; the last sequence looked at; and by sequence
-- those without a dead letter (nil: there is no such queue).
function redrive.find(from, now, seqs)
  local version = redis.call('HGET', from.meta, 'version')
  if #seqs == 0 or record.open_all(from, version or '') then
    return {}, seqs[#seqs]
  end
  local candidates, last, missing = purge.find(from, seqs)
  local timely = {}
  for _, entry in ipairs(candidates) do
    if not message_ttl.is_over(from, now, entry) then timely[#timely + 1] = entry end
  end
  return #timely == #candidates and candidates or timely, last, missing
end

--- The dead letters as arriving messages without a TTL of their own. With `keeps` a deadline is kept, as far
-- as the options of the queue allow.
function redrive.read(q, from, now, letters, keeps)
  local items = {n = #letters, size = 0, count = 0, words = {}, deadline = {}, outcome = {}}
  local mark = {queue = from.name, reason = 'redriven', now = string.format('%d', now)}
  local ttl = message_ttl.resolve(q, now, '', '')
  local deadline, dead = ttl and now + ttl, ttl and ttl <= 0 or q.message_ttl == 0
  for i, entry in ipairs(letters) do
    local seq, parts = entry[1], entry[2]
    if keeps then
      local own = lazy(message).deadline(parts[1])
      ttl = message_ttl.resolve(q, now, own and '@' or '', own or '')
      deadline, dead = ttl and now + ttl, ttl and ttl <= 0 or q.message_ttl == 0
    end
    mark.numbers = log.ms_digits(seq) .. ' - 0 0 '
    items.words[2 * i - 1], items.words[2 * i] = history.redrive(parts[1], seq, mark, deadline), parts[2]
    items.deadline[2 * i] = deadline
    if dead then
      items.outcome[2 * i] = 'dead'
    else
      items.count, items.size = items.count + 1, items.size + #parts[2]
    end
  end
  return items
end

--- Take the dead letters that found room out of their queue.
function redrive.leave(from, letters, items)
  local leaving = {}
  for i, entry in ipairs(letters) do
    if items.outcome[2 * i] ~= 'refused' then leaving[#leaving + 1] = entry end
  end
  purge.take(from, #leaving == #letters and letters or leaving, false)
  record.count(from, 'redriven', #leaving)
  record.save(from)
end

--- The result of each dead letter up to `last`. After a lost reply, one that is gone counts as redriven before.
function redrive.results(seqs, last, letters, results, missing, replay)
  local results_by_place, at = {}, {}
  for i, entry in ipairs(letters) do
    at[entry[1]] = results[i]
  end
  for i, seq in ipairs(seqs) do
    results_by_place[i] = at[seq] or replay ~= '' and (not missing or missing[seq]) and '=' or '-'
    if seq == last then break end
  end
  return results_by_place
end

--- The entries of a page from another slot: sequence, header and body in turn.
function redrive.page(words)
  local letters = {}
  for i = 3, #words, 3 do
    letters[i / 3] = {words[i - 2], {words[i - 1], words[i]}}
  end
  return letters
end

--- The results of a page: for each dead letter `.`, or `n` or `b` if the limit of the number or the bytes refused it.
function redrive.outcomes(items)
  local results = {}
  for i = 1, items.n do
    local limit = items.limit[2 * i]
    results[i] = not limit and '.' or limit == 'max_length' and 'n' or 'b'
  end
  return table.concat(results)
end

--- End a page: the dead letters of `refused` are ready again in their old places, and the others have gone.
function redrive.settle(q, now, page, refused)
  local stays, gone, n = {}, {}, 0
  for _, seq in ipairs(refused) do
    stays[seq] = true
  end
  for _, entry in ipairs(page) do
    if stays[entry[1]] then
      redrive.put_back(q, entry)
      n = n + 1
    else
      gone[#gone + 1] = entry[1]
    end
  end
  if #gone > 0 then redis.call('HDEL', q.failures, unpack(gone)) end
  record.count(q, 'redriven', #page - n)
  if n > 0 then
    redis.call('HSET', q.meta, 'compacted', 1)
    if q.life then lazy(queue_lifetime).mark_used(q, now) end -- it may be over
    record.schedule_sweep(q, now) -- a limit may act, or a TTL
    wakeup.ring(q, now)
  end
end

--- Make a dead letter ready again that was taken out of the queue.
function redrive.put_back(q, entry)
  local seq, size = entry[1], #entry[2][1] + #entry[2][2]
  redis.call('HSET', q.detached, seq, log.pack(entry[2]))
  requeue.put(q, entry)
  if size > SMALL and (not q.large_upto or q.large_upto < seq) then budget.note_large(q, seq, size) end
end
