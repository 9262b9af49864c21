--- Putting messages at the end of the log, under ids `<13 digits of ms>-<6 digits>`: equally long, so that they sort as
-- text too.
--
-- @use budget
local append = {}
local SMALL = 16384
local FIRST, LAST = 100000, 999999

--- The next id: never lower than the one before, even if the server's clock steps back.
function append.next_seq(q, now)
  if not q.serial then
    q.prefix = string.format('%013d-', now)
    if q.prefix > q.last_id then
      q.ms, q.serial, q.last_id = now, FIRST, q.prefix .. '100000'
      return q.last_id
    end
    q.ms, q.prefix, q.serial = tonumber(string.sub(q.last_id, 1, 13)), string.sub(q.last_id, 1, 14), string.sub(q.last_id, 15) + 0
  end
  if now > q.ms or q.serial >= LAST then
    q.ms, q.serial = math.max(now, q.ms + 1), FIRST
    q.prefix = string.format('%013d-', q.ms)
  else
    q.serial = q.serial + 1
  end
  q.last_id = q.prefix .. q.serial
  return q.last_id
end

function append.one(q, now, header, body)
  local id = append.next_seq(q, now)
  redis.call('XADD', q.log, id, header, body)
  if #header + #body > SMALL then lazy(budget).note_large(q, id, #header + #body) end
  return id
end

--- Append `count` messages: every `step`-th of `words` is a body, and where `step` is 2 its header stands before it.
-- Returns their ids. Nothing here costs Lua more than to write out a number, so that is done once for ten ids.
function append.all(q, now, words, step, count)
  local ids, n, id, digits, ten, digit, most = {}, 0, nil, nil, nil, 9, SMALL
  for i = step, step * count, step do
    if digit < 9 then
      if not ten then
        digits, ten = digits or {'1', '2', '3', '4', '5', '6', '7', '8', '9'}, string.sub(id, 1, -2)
      end
      q.serial, digit = q.serial + 1, digit + 1
      id = ten .. digits[digit]
    else
      id, ten = append.next_seq(q, now), nil
      digit = q.serial % 10
    end
    local header, body = step == 2 and words[i - 1] or '', words[i]
    redis.call('XADD', q.log, id, header, body)
    n = n + 1
    ids[n] = id
    if #header + #body > most then most = #header + #body end
  end
  q.last_id = id or q.last_id
  if most > SMALL then lazy(budget).note_large(q, q.last_id, most) end
  return ids
end
