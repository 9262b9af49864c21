--- Dead letters that go back: they leave the queue that holds them (`from`), and arrive in another (`q`).
--
-- @use record purge message_ttl history
local redrive = {}

--- Those of these letters that are ready and in time, in the order of `ids`; the last id that was looked at; and by id
-- those that are not there (nil: the queue is not).
function redrive.find(from, now, ids)
  local version = redis.call('HGET', from.meta, 'version')
  if #ids == 0 or record.open_all(from, version or '') then
    return {}, ids[#ids]
  end
  local there, last, missing = purge.find(from, ids)
  local timely = {}
  for _, entry in ipairs(there) do
    if not message_ttl.is_over(from, now, entry) then timely[#timely + 1] = entry end
  end
  return #timely == #there and there or timely, last, missing
end

--- The letters as messages that arrive, sent without a TTL of their own.
function redrive.read(q, from, now, letters)
  local items = {n = #letters, size = 0, count = 0, words = {}, own = {}, fate = {}}
  local mark = {queue = from.name, reason = 'redriven', now = string.format('%d', now)}
  local ttl = message_ttl.resolve(q, now, '', '')
  local own, dead = ttl and now + ttl, ttl and ttl <= 0 or q.message_ttl == 0
  for i, entry in ipairs(letters) do
    local id, parts = entry[1], entry[2]
    mark.facts = string.sub(id, 1, 13) .. ' - 0 0 '
    items.words[2 * i - 1], items.words[2 * i] = history.redrive(parts[1], id, mark, own), parts[2]
    items.own[2 * i] = own
    if dead then
      items.fate[2 * i] = 'dead'
    else
      items.count, items.size = items.count + 1, items.size + #parts[2]
    end
  end
  return items
end

--- All that found room leave the queue that held them.
function redrive.leave(from, letters, items)
  local gone = {}
  for i, entry in ipairs(letters) do
    if items.fate[2 * i] ~= 'refused' then gone[#gone + 1] = entry end
  end
  purge.take(from, #gone == #letters and letters or gone, false)
  record.count(from, 'redriven', #gone)
  record.save(from)
end

--- What became of each letter, as far as `last`. After a lost reply, one that is not there any more has gone back already.
function redrive.results(ids, last, letters, results, missing, replay)
  local told, at = {}, {}
  for i, entry in ipairs(letters) do
    at[entry[1]] = results[i]
  end
  for i, id in ipairs(ids) do
    told[i] = at[id] or replay ~= '' and (not missing or missing[id]) and '=' or '-'
    if id == last then break end
  end
  return told
end
