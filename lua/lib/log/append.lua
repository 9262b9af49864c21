--- Appending messages to the log. A sequence is `<13 digits of ms>-<6 digits>`. All have one length, so they sort as
-- text.
--
-- @use budget
local append = {}
local SMALL = 16384
local FIRST, LAST = 100000, 999999

--- The next sequence. It always rises, also after a step back of the server's clock.
function append.next_seq(q, now)
  if not q.serial then
    q.prefix = string.format('%013d-', now)
    if q.prefix > q.last_id then
      q.ms, q.serial, q.last_id = now, FIRST, q.prefix .. '100000'
      return q.last_id
    end
    q.ms, q.prefix = tonumber(string.sub(q.last_id, 1, 13)), string.sub(q.last_id, 1, 14)
    q.serial = string.sub(q.last_id, 15) + 0
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

--- Append one message and return its sequence.
function append.one(q, now, header, body)
  local seq = append.next_seq(q, now)
  redis.call('XADD', q.log, seq, header, body)
  if #header + #body > SMALL then lazy(budget).note_large(q, seq, #header + #body) end
  return seq
end

--- Append `count` messages and return their sequences. Every `step`-th word is a body; with `step` 2 its header comes
-- before it, and otherwise all messages have the header `common`. Formatting a number is the dearest part, so it
-- happens once for ten sequences.
function append.all(q, now, words, step, count, common)
  local seqs, n, seq, digits, ten, digit, most = {}, 0, nil, nil, nil, 9, SMALL
  for i = step, step * count, step do
    if digit < 9 then
      if not ten then
        digits, ten = digits or {'1', '2', '3', '4', '5', '6', '7', '8', '9'}, string.sub(seq, 1, -2)
      end
      q.serial, digit = q.serial + 1, digit + 1
      seq = ten .. digits[digit]
    else
      seq, ten = append.next_seq(q, now), nil
      digit = q.serial % 10
    end
    local header, body = step == 2 and words[i - 1] or common, words[i]
    redis.call('XADD', q.log, seq, header, body)
    n = n + 1
    seqs[n] = seq
    if #header + #body > most then most = #header + #body end
  end
  q.last_id = seq or q.last_id
  if most > SMALL then lazy(budget).note_large(q, q.last_id, most) end
  return seqs
end
