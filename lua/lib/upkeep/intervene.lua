--- Interventions: what an operator does to single messages in any state but leased. A leased one belongs to its
-- consumer.
--
-- @use log ready message_ttl budget schedule record dead_letter restore wakeup memory limits expiry
local intervene = {}

--- Find the messages of `seqs`, as far as the budget goes: entries that are `ready`, entries that are delayed
-- (`later`), and columns of scheduled ones (`waiting`). `n` is the number of all, `looked` that of the sequences looked
-- at. A message that is overdue is not there. `leased` is the sequence of a leased one, and `ends` the end of its
-- lease; the search stops at it. In a `dry` run a lease that is over is none: a sweep would come first.
function intervene.find(q, now, seqs, dry)
  local waiting = {seqs = {}, at = {}, texts = {}}
  local found = {n = 0, looked = 0, ready = {}, later = {}, waiting = waiting}
  for i, seq in ipairs(seqs) do
    if found.leased or i > 1 and not budget.is_open() then break end
    found.looked = i
    local entry = log.is_seq(seq) and log.find(q, seq)
    if not entry then
      intervene.add_scheduled(q, found, seq)
    else
      intervene.add(q, now, found, entry, dry)
    end
  end
  return found
end

--- Add a message of the log to its list.
function intervene.add(q, now, found, entry, dry)
  local seq, into = entry[1], found.ready
  for state in each('states') do
    local score = redis.call('ZSCORE', q[state.part], seq)
    local ends = score and math.floor(score / state.per_ms)
    if ends and state.promoted then
      into = found.later
    elseif ends and not (dry and ends <= now) then
      found.leased, found.ends = seq, ends
    end
  end
  if not found.leased and not message_ttl.is_over(q, now, entry) then
    into[#into + 1], found.n = entry, found.n + 1
  end
end

--- Add a message that waits under this first sequence.
function intervene.add_scheduled(q, found, seq)
  local at = redis.call('ZSCORE', q.scheduled, seq)
  local text = at and redis.call('HGET', q.upcoming, seq)
  if text then
    local waiting = found.waiting
    local n = #waiting.seqs + 1
    waiting.seqs[n], waiting.at[n], waiting.texts[n], found.n = seq, tonumber(at), text, found.n + 1
    budget.spend({{seq, {'', text}}})
  end
end

--- The messages that have arrived, ready ones first.
function intervene.arrived(found)
  return log.join(log.join({}, found.ready), found.later)
end

--- Take the messages that have arrived out. Returns them.
function intervene.take(q, found)
  ready.remove(q, found.ready, false)
  if #found.later > 0 then
    local seqs = log.seqs(found.later)
    log.remove(q, seqs)
    redis.call('ZREM', q.delayed, unpack(seqs))
  end
  return intervene.arrived(found)
end

--- Take the messages that have arrived out, with their failures. Returns their number.
function intervene.remove(q, found)
  local seqs = log.seqs(intervene.take(q, found))
  if #seqs > 0 then redis.call('HDEL', q.failures, unpack(seqs)) end
  return #seqs
end

--- Delete messages: they count as purged, and scheduled ones as cancelled.
function intervene.delete(q, found)
  local waiting = found.waiting
  record.count(q, 'purged', intervene.remove(q, found))
  if #waiting.seqs > 0 then
    schedule.release(q, waiting.seqs, waiting.texts)
    record.count(q, 'cancelled', #waiting.seqs)
  end
end

--- Let messages die of a reason. It is no delivery, so none counts as failed.
function intervene.bury(q, now, found, reason, description)
  local waiting = found.waiting
  local entries = intervene.take(q, found)
  if #waiting.seqs > 0 then log.join(entries, schedule.take_out(q, now, waiting.seqs, waiting.at, waiting.texts)) end
  dead_letter.bury(q, now, reason, entries, 0, description)
  wakeup.ring(q, now) -- the target may be this queue
end

--- Let delayed messages come back now, and scheduled ones arrive now: the caller sweeps.
function intervene.redeliver(q, now, found)
  local waiting = found.waiting
  memory.may_pass(q)
  if #found.later > 0 then
    local mode = {counted = 0, description = '', wholly = true}
    if limits.drops_oldest(q) and q.due_at and q.due_at <= now then
      mode.crowded = lazy(expiry).make_room(q, now, 250)
    end
    restore.run(q, now, q.delayed, log.seqs(found.later), mode)
    wakeup.ring(q, now)
  end
  for _, seq in ipairs(waiting.seqs) do
    redis.call('ZADD', q.scheduled, string.format('%d', now), seq)
  end
  if #waiting.seqs > 0 then schedule.expect(q, now, now) end
end
