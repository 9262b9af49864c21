--- Failed deliveries: their number for each message, and the last description of a failure.
--
-- The hash `failures` has `<n>` or `<n> <description>`. A description may contain any bytes. `@<ms>` behind the number
-- is the end of a delay that is longer than the retention of the queue (`delays`).
local failures = {}
local HIGHEST = 1e9

--- Read the failures of messages: tables of numbers, descriptions and ends of delays, by sequence.
function failures.read(q, seqs)
  local failed, descriptions, away = {}, {}, {}
  if #seqs > 0 and redis.call('EXISTS', q.failures) == 1 then
    for i, value in ipairs(redis.call('HMGET', q.failures, unpack(seqs))) do
      local n, ends, gap, at = string.match(value or '', '^(%d+)@?(%d*)( ?)()')
      if n then
        failed[seqs[i]], away[seqs[i]] = math.min(tonumber(n), HIGHEST), tonumber(ends)
        if gap ~= '' then descriptions[seqs[i]] = string.sub(value, at) end
      end
    end
  end
  return failed, descriptions, away
end

--- The numbers as a list: sequence and number in turn.
function failures.list(q, seqs)
  local list = {}
  for seq, n in pairs((failures.read(q, seqs))) do
    if n > 0 then list[#list + 1], list[#list + 2] = seq, n end
  end
  return list
end

--- Add the failures of a message to `fields`, which are written together. Empty failures leave the hash.
function failures.note(q, fields, seq, n, description, ends)
  if n == 0 and not ends then
    redis.call('HDEL', q.failures, seq)
  else
    fields[#fields + 1], fields[#fields + 2] = seq, failures.pack(n, description, ends)
  end
end

--- A number, a description (nil or empty: none) and the end of a delay (nil: none) in the form of the hash.
function failures.pack(n, description, ends)
  local text = ends and string.format('%d@%.0f', n, ends) or n
  return description and description ~= '' and text .. ' ' .. description or text
end
