--- The records of a history: one for each queue and reason, the newest first.
--
-- A letter that went back has a record of that too, with the reason `redriven`: no death, but the end of a circle.
-- Whoever may write to Redis can write any history, so reading one never fails: it ends at the first damaged record.
local records = {}
local DIGITS = 15
local RECORDS, RECORD_BYTES = 64, 65536

--- The records of a history, as far as it can be read; and where the first lies that cannot, or nil.
function records.read(text)
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
function records.remember(death, older)
  local count, first, others = 1, death.now, {}
  for _, record in ipairs(older) do
    if record.queue == death.queue and record.reason == death.reason then
      count, first = record.count + 1, record.first
    else
      others[#others + 1] = record
    end
  end
  local newest = string.format('%s %s %d %s %s ', death.queue, death.reason, count, first, death.now) .. death.facts
  return records.join(newest, death.reason, others)
end

--- The newest record and the older ones, as far as the bound allows; the oldest go first. Those of a run of deaths that
-- nobody has interrupted all stay, because a circle is found by them. They are one for each queue at most.
function records.join(newest, reason, others)
  local texts, size, run = {newest}, #newest, reason
  for _, record in ipairs(others) do
    size = size + #record.text
    if records.ends_run(run) and (#texts >= RECORDS or size > RECORD_BYTES) then break end
    texts[#texts + 1] = record.text
    if not records.ends_run(run) then run = record.reason end
  end
  return table.concat(texts)
end

--- Whether a search for a circle ends at a record of this reason: somebody rejected the message, or sent it back.
function records.ends_run(reason)
  return reason == 'rejected' or reason == 'redriven'
end
