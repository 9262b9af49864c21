--- The deaths of a message: the history in its header, with one record for each queue and reason, the newest first.
--
-- A redriven message has a record with the reason `redriven`, too: it is no death, but it ends a circle. A user who
-- may write to Redis can write any history. Reading one never fails: it ends at the first damaged record.
--
-- @use message
local history = {}
local DIGITS = 15
local RECORDS, RECORD_BYTES = 64, 65536

--- The message id, the history and the extras of a header. A message without an id of its own goes by `seq`.
function history.parts(header, seq)
  local id_length, deaths_length, at = message.lengths(header)
  if not id_length then
    return seq, '', ''
  end
  local message_id = id_length > 0 and string.sub(header, at, at + id_length - 1) or seq
  at = at + id_length
  return message_id, string.sub(header, at, at + deaths_length - 1), string.sub(header, at + deaths_length)
end

--- Return whether the history holds the target, with no rejection and no redrive since.
function history.in_circle(target, death, older)
  if death.reason == 'rejected' then return false end
  return death.queue == target or history.in_run(target, older)
end

--- Return whether the newest deaths, up to a rejection or a redrive, hold the target.
function history.in_run(target, deaths)
  for _, death in ipairs(deaths) do
    if history.ends_run(death.reason) then return false end
    if death.queue == target then return true end
  end
  return false
end

--- The header of a dead letter: no own deadline, the same message id, one more record in front of the history. Returns
-- nil if the dead letter would enter an automatic circle.
function history.bury(header, seq, death, target)
  if death.queue ~= target and not string.find(header, ';', 1, true) then
    local record = death.first .. death.numbers
    return string.format(';%d;%d;', #seq, #record) .. seq .. record
  end
  local message_id, deaths, extras = history.parts(header, seq)
  local older = history.read(deaths)
  if history.in_circle(target, death, older) then return nil end
  deaths = history.add(death, older)
  return string.format(';%d;%d;', #message_id, #deaths) .. message_id .. deaths .. extras
end

--- The header of a redriven message: its new deadline, and the record of the redrive in front of the history.
function history.redrive(header, seq, mark, deadline)
  local message_id, deaths, extras = history.parts(header, seq)
  deaths = history.add(mark, history.read(deaths))
  local text = deadline and string.format('%d', deadline) or ''
  return string.format('%s;%d;%d;', text, #message_id, #deaths) .. message_id .. deaths .. extras
end

--- The readable records of a history, and the position of the first damaged one, or nil.
function history.read(text)
  local list, at = {}, 1
  while at <= #text do
    local queue_name, reason, count, first, length, start = string.match(text,
      '^(%S+) (%S+) (%d+) (%d+) %d+ %d+ %S+ %d+ (%d+) ()', at)
    local stop = start and start + length
    if not stop or stop > #text + 1 or #count > DIGITS then return list, at end
    list[#list + 1] = {queue = queue_name, reason = reason, count = tonumber(count), first = first,
      text = string.sub(text, at, stop - 1)}
    at = stop
  end
  return list
end

--- The history with one more record. Deaths in one queue for one reason share a record.
function history.add(death, older)
  local count, first, others = 1, death.now, {}
  for _, earlier in ipairs(older) do
    if earlier.queue == death.queue and earlier.reason == death.reason then
      count, first = earlier.count + 1, earlier.first
    else
      others[#others + 1] = earlier
    end
  end
  local newest = string.format('%s %s %d %s %s ', death.queue, death.reason, count, first, death.now) .. death.numbers
  return history.join(newest, death.reason, others)
end

--- Join the newest record and the older ones up to the bound; the oldest are dropped first. All records of an
-- uninterrupted run of deaths stay, since a circle is found by them. A run has at most one record for each queue.
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

--- Return whether a search for a circle ends at a record of this reason: a rejection or a redrive.
function history.ends_run(reason)
  return reason == 'rejected' or reason == 'redriven'
end
