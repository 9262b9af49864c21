--- Redriving dead letters: they leave the queue that has them (`from`) and arrive in another one (`q`). Any message may
-- move so.
--
-- @use record purge message message_ttl history log
local redrive = {}

--- The ready letters among `seqs` that are not expired, in the same order; the last sequence looked at; and by sequence
-- those without a letter (nil: there is no such queue).
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

--- The letters as arriving messages without a TTL of their own. With `keeps` those that have a deadline keep it, as far
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

--- Take the letters that found room out of their queue.
function redrive.leave(from, letters, items)
  local leaving = {}
  for i, entry in ipairs(letters) do
    if items.outcome[2 * i] ~= 'refused' then leaving[#leaving + 1] = entry end
  end
  purge.take(from, #leaving == #letters and letters or leaving, false)
  record.count(from, 'redriven', #leaving)
  record.save(from)
end

--- The result of each letter up to `last`. After a lost reply, a letter that is gone counts as redriven before.
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
