--- Failed deliveries of a message: how many, and the description that the last described one of them left.
--
-- The hash `redelivered` holds `<n>`, or `<n> <description>`. A description is opaque and may hold any bytes.
local failures = {}

--- The numbers of failed deliveries of these messages, by id; and their descriptions, by id.
function failures.read(q, ids)
  local failed, said = {}, {}
  if #ids > 0 and redis.call('EXISTS', q.redelivered) == 1 then
    for i, value in ipairs(redis.call('HMGET', q.redelivered, unpack(ids))) do
      local gap = value and string.find(value, ' ', 1, true)
      if gap then
        said[ids[i]] = string.sub(value, gap + 1)
        value = string.sub(value, 1, gap - 1)
      end
      failed[ids[i]] = tonumber(value)
    end
  end
  return failed, said
end

--- The numbers as a list, id and number in turn.
function failures.list(q, ids)
  local list = {}
  for id, n in pairs((failures.read(q, ids))) do
    list[#list + 1], list[#list + 2] = id, n
  end
  return list
end

--- A number and a description (nil or empty: none) as the hash holds them.
function failures.packed(n, description)
  return description and description ~= '' and string.format('%d ', n) .. description or n
end
