--- Putting messages at the end of the log, under ids `<13 digits of ms>-<6 digits>`: equally long, so that they sort as
-- text too.
local append = {}
local FIRST, LAST = 100000, 999999

--- The next id: never lower than the one before, even if the server's clock steps back.
function append.next_id(q, now)
  if not q.serial then
    q.prefix = string.format('%013d-', now)
    if q.prefix > q.last then
      q.ms, q.serial, q.last = now, FIRST, q.prefix .. FIRST
      return q.last
    end
    q.ms, q.prefix, q.serial = tonumber(string.sub(q.last, 1, 13)), string.sub(q.last, 1, 14), string.sub(q.last, 15) + 0
  end
  if now > q.ms or q.serial >= LAST then
    q.ms, q.serial = math.max(now, q.ms + 1), FIRST
    q.prefix = string.format('%013d-', q.ms)
  else
    q.serial = q.serial + 1
  end
  q.last = q.prefix .. q.serial
  return q.last
end

function append.one(q, now, header, body)
  local id = append.next_id(q, now)
  redis.call('XADD', q.log, id, header, body)
  return id
end

--- Append `count` messages: every `step`-th of `words` is a body. Plain ones have no header. Returns their ids.
function append.all(q, now, words, step, count, header)
  local ids, id, serial = {}, nil, nil
  for i = step, step * count, step do
    if serial and serial < LAST then
      serial = serial + 1
      id = q.prefix .. serial
    else
      q.serial = serial or q.serial
      id = append.next_id(q, now)
      serial = q.serial
    end
    redis.call('XADD', q.log, id, header and header[i] or '', words[i])
    ids[#ids + 1] = id
  end
  q.serial, q.last = serial, id or q.last
  return ids
end
