--- Failed deliveries of a message: how many, and the description that the last described one of them left.
--
-- The hash `failures` holds `<n>`, or `<n> <description>`. A description is opaque and may hold any bytes. Behind the
-- number there is `@<ms>` where the message is to be away for longer than its queue keeps messages now (`delays`).
local failures = {}
local HIGHEST = 1e9

--- The numbers of failed deliveries of these messages, by id; their descriptions, by id; and until when they are to be
-- away, by id.
function failures.read(q, ids)
  local failed, said, away = {}, {}, {}
  if #ids > 0 and redis.call('EXISTS', q.failures) == 1 then
    for i, value in ipairs(redis.call('HMGET', q.failures, unpack(ids))) do
      local n, ends, gap, at = string.match(value or '', '^(%d+)@?(%d*)( ?)()')
      if n then
        failed[ids[i]], away[ids[i]] = math.min(tonumber(n), HIGHEST), tonumber(ends)
        if gap ~= '' then said[ids[i]] = string.sub(value, at) end
      end
    end
  end
  return failed, said, away
end

--- The numbers as a list, id and number in turn.
function failures.list(q, ids)
  local list = {}
  for id, n in pairs((failures.read(q, ids))) do
    if n > 0 then list[#list + 1], list[#list + 2] = id, n end
  end
  return list
end

--- Note these of a message in `fields`, which go into the hash together. What says nothing leaves the hash.
function failures.note(q, fields, id, n, description, ends)
  if n == 0 and not ends then
    redis.call('HDEL', q.failures, id)
  else
    fields[#fields + 1], fields[#fields + 2] = id, failures.pack(n, description, ends)
  end
end

--- A number, a description (nil or empty: none) and an end (nil: none) as the hash holds them.
function failures.pack(n, description, ends)
  local text = ends and string.format('%d@%.0f', n, ends) or n
  return description and description ~= '' and text .. ' ' .. description or text
end
