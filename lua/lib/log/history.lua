--- The deaths of a message, as its header keeps them: finding them there, and putting them back with one more.
--- The records of a history: one for each queue and reason, the newest first.
--
-- A letter that went back has a record of that too, with the reason `redriven`: no death, but the end of a circle.
-- Whoever may write to Redis can write any history, so reading one never fails: it ends at the first damaged record.
--
-- @use message
local history = {}
local DIGITS = 15
local RECORDS, RECORD_BYTES = 64, 65536

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
  local _, damaged = history.read(deaths)
  return not damaged
end

--- Whether the target is in the history, and nobody has rejected the message or sent it back since.
function history.in_circle(target, death, older)
  if death.reason == 'rejected' then return false end
  if death.queue == target then return true end
  for _, earlier in ipairs(older) do
    if history.ends_run(earlier.reason) then return false end
    if earlier.queue == target then return true end
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
  local older = history.read(deaths)
  if history.in_circle(target, death, older) then return nil end
  deaths = history.add(death, older)
  return string.format(';%d;%d;', #own_id, #deaths) .. own_id .. deaths .. extras
end

--- The header of a letter that goes back, with its new deadline: the redrive stands in front of the history.
function history.redrive(header, id, mark, own)
  local own_id, deaths, extras = history.parts(header, id)
  deaths = history.add(mark, history.read(deaths))
  return string.format('%s;%d;%d;', own and string.format('%d', own) or '', #own_id, #deaths) .. own_id .. deaths .. extras
end

--- The records of a history, as far as it can be read; and where the first lies that cannot, or nil.
function history.read(text)
  local found, at = {}, 1
  while at <= #text do
    local queue_name, reason, count, first, length, start = string.match(text,
      '^(%S+) (%S+) (%d+) (%d+) %d+ %d+ %S+ %d+ (%d+) ()', at)
    local stop = start and start + length
    if not stop or stop > #text + 1 or #count > DIGITS then return found, at end
    found[#found + 1] = {queue = queue_name, reason = reason, count = tonumber(count), first = first,
      text = string.sub(text, at, stop - 1)}
    at = stop
  end
  return found
end

--- The history with one more record. Deaths in one queue for one reason are one record, the newest record first.
function history.add(death, older)
  local count, first, others = 1, death.now, {}
  for _, earlier in ipairs(older) do
    if earlier.queue == death.queue and earlier.reason == death.reason then
      count, first = earlier.count + 1, earlier.first
    else
      others[#others + 1] = earlier
    end
  end
  local newest = string.format('%s %s %d %s %s ', death.queue, death.reason, count, first, death.now) .. death.facts
  return history.join(newest, death.reason, others)
end

--- The newest record and the older ones, as far as the bound allows; the oldest go first. Those of a run of deaths that
-- nobody has interrupted all stay, because a circle is found by them. They are one for each queue at most.
function history.join(newest, reason, others)
  local texts, size, run = {newest}, #newest, reason
  for _, earlier in ipairs(others) do
    size = size + #earlier.text
    if history.ends_run(run) and (#texts >= RECORDS or size > RECORD_BYTES) then break end
    texts[#texts + 1] = earlier.text
    if not history.ends_run(run) then run = earlier.reason end
  end
  return table.concat(texts)
end

--- Whether a search for a circle ends at a record of this reason: somebody rejected the message, or sent it back.
function history.ends_run(reason)
  return reason == 'rejected' or reason == 'redriven'
end
