--- The deaths of a message, as its header keeps them: finding them there, and putting them back with one more.
--
-- @use message records
local history = {}

--- The id, the history and the extras of a header; `id` is what names a message that has none of its own.
function history.parts(header, id)
  local id_length, deaths_length, at = message.lengths(header)
  if not id_length then
    return id, '', ''
  end
  if id_length > 0 then id = string.sub(header, at, at + id_length - 1) end
  at = at + id_length
  return id, string.sub(header, at, at + deaths_length - 1), string.sub(header, at + deaths_length)
end

--- Whether all of a header and of its history can be read.
function history.is_sound(header)
  if not message.is_sound(header) then return false end
  local _, deaths = history.parts(header, '')
  local _, damaged = records.read(deaths)
  return not damaged
end

--- Whether the target is in the history, and nobody has rejected the message or sent it back since.
function history.in_circle(target, death, older)
  if death.reason == 'rejected' then return false end
  if death.queue == target then return true end
  for _, record in ipairs(older) do
    if records.ends_run(record.reason) then return false end
    if record.queue == target then return true end
  end
  return false
end

--- The header of a dead letter: the own deadline gone, the id kept, one more death in front of the history.
-- Returns nil if the letter would go round in an automatic circle (RabbitMQ CYC-04).
function history.bury(header, id, death, target)
  if death.queue ~= target and not string.find(header, ';', 1, true) then
    local record = death.first .. death.facts
    return string.format(';%d;%d;', #id, #record) .. id .. record
  end
  local own_id, deaths, extras = history.parts(header, id)
  local older = records.read(deaths)
  if history.in_circle(target, death, older) then return nil end
  deaths = records.remember(death, older)
  return string.format(';%d;%d;', #own_id, #deaths) .. own_id .. deaths .. extras
end

--- The header of a letter that goes back, with its new deadline: the redrive stands in front of the history.
function history.redrive(header, id, mark, own)
  local own_id, deaths, extras = history.parts(header, id)
  deaths = records.remember(mark, records.read(deaths))
  return string.format('%s;%d;%d;', own and string.format('%d', own) or '', #own_id, #deaths) .. own_id .. deaths .. extras
end
