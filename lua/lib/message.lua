--- The packed header of a message, as far as scripts read it (`rqttl/codec.py` is the other half).
local message = {}

--- The message's own deadline, or nil.
function message.deadline(header)
  if header == '' then
    return nil
  end
  return tonumber(header) or tonumber((string.match(header, '^%d*')))
end

function message.pack(deadline, id, extras)
  local own = deadline and string.format('%.0f', deadline) or ''
  if id == '' and extras == '' then
    return own
  end
  return own .. ';' .. (id ~= '' and #id or '') .. ';;' .. id .. extras
end

function message.records(history)
  local found, at = {}, 1
  while at <= #history do
    local queue_name, reason, count, first, length, text = string.match(history,
      '^(%S+) (%S+) (%d+) (%d+) %d+ %d+ %S+ %d+ (%d+) ()', at)
    local stop = text + length
    found[#found + 1] = {queue = queue_name, reason = reason, count = tonumber(count), first = first,
      text = string.sub(history, at, stop - 1)}
    at = stop
  end
  return found
end

function message.in_circle(target, death, older)
  if death.reason == 'rejected' then return false end
  if death.queue == target then return true end
  for _, record in ipairs(older) do
    if record.reason == 'rejected' then return false end
    if record.queue == target then return true end
  end
  return false
end

--- The header of a dead letter: the own deadline gone, the id kept, one more death in front of the history.
-- Returns nil if the letter would go round in an automatic circle (RabbitMQ CYC-04).
function message.bury(header, id, death, target)
  local id_length, history_length, at = string.match(header, '^%d*;(%d*);(%d*);()')
  if not at and death.queue ~= target then
    local record = death.first .. death.facts
    return string.format(';%d;%d;', #id, #record) .. id .. record
  end
  local older, extras = {}, ''
  if at then
    id_length, history_length = tonumber(id_length) or 0, tonumber(history_length) or 0
    if id_length > 0 then id = string.sub(header, at, at + id_length - 1) end
    at = at + id_length
    extras = string.sub(header, at + history_length)
    older = message.records(string.sub(header, at, at + history_length - 1))
  end
  if message.in_circle(target, death, older) then return nil end
  local history = message.remember(death, older)
  return string.format(';%d;%d;', #id, #history) .. id .. history .. extras
end

--- The history with one more death. Deaths in one queue for one reason are one record, the newest record first.
function message.remember(death, older)
  local count, first, others = 1, death.now, ''
  for _, record in ipairs(older) do
    if record.queue == death.queue and record.reason == death.reason then
      count, first = record.count + 1, record.first
    else
      others = others .. record.text
    end
  end
  return string.format('%s %s %d %s %s ', death.queue, death.reason, count, first, death.now) .. death.facts .. others
end
