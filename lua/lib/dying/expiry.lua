--- Expiry: removing messages in the order of their deadlines in force.
--
-- Own deadlines are in the sorted set `expiry`. Retention needs no index, since sequences are times. A delayed message
-- is due at its deadline at the latest. Ready messages die in order, also across calls. Delayed ones die among them
-- with two exceptions: alone they die in the order in which they are due, and one behind more live ones than a call
-- reads dies later. A leased message dies when it comes back.
--
-- @use message_ttl ready log stale dead_letter record candidates
local expiry = {}

--- Up to `most` overdue messages with the earliest deadlines. Of `all`, those `past_retention` head the queue, those
-- `past_deadline` are ready anywhere, and those `away` are in the set of a state that has ended, such as `delayed`.
-- `full` says that more may be overdue. Nothing is written.
function expiry.overdue(q, now, most)
  local due = redis.call('ZRANGEBYSCORE', q.expiry, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
  local back = false
  for state in each('promoted') do
    local members = redis.call('ZRANGEBYSCORE', q[state.part], '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
    if #members > 0 then
      back = back or {}
      back[state.part] = members
    end
  end
  if q.message_ttl or back then
    return lazy(expiry).merge(q, now, most, due, back)
  end
  local seqs = {}
  for i = 1, #due, 2 do
    seqs[#seqs + 1] = due[i]
  end
  local past_deadline, looked = stale.read(q, q.expiry, seqs)
  return {all = past_deadline, past_deadline = past_deadline, past_retention = {}, away = {},
    full = looked < #seqs or #seqs == most}
end

--- Bury overdue messages. Returns their number.
function expiry.bury(q, now, dead)
  if #dead.all == 0 then return 0 end
  ready.remove_unhandled(q, dead.past_retention, true)
  ready.remove_unhandled(q, dead.past_deadline, false)
  if #dead.away > 0 then
    local seqs = log.seqs(dead.away)
    ready.record_loss(q, dead.away)
    log.remove(q, seqs)
    for state in each('promoted') do
      redis.call('ZREM', q[state.part], unpack(seqs))
    end
  end
  lazy(dead_letter).bury(q, now, 'expired', dead.all)
  return #dead.all
end

--- Bury overdue messages so that they take no room. Returns whether more may be overdue.
function expiry.make_room(q, now, most)
  local dead = expiry.overdue(q, now, most)
  expiry.bury(q, now, dead)
  return dead.full
end

--- Bury expired messages that a receive met. If other messages must die before them (`more`), they become delayed, due
-- at their deadlines.
function expiry.bury_or_delay(q, now, entries, more)
  if more then return expiry.delay(q, now, entries) end
  message_ttl.sort(q, entries)
  expiry.bury(q, now, {all = entries, past_deadline = entries, past_retention = {}, away = {}})
end

--- Delay expired messages until others have died before them.
function expiry.delay(q, now, entries)
  local seqs, members = log.seqs(entries), {}
  for i, entry in ipairs(entries) do
    members[2 * i - 1], members[2 * i] = message_ttl.deadline(q, entry[1], entry[2][1]), entry[1]
  end
  redis.call('ZREM', q.expiry, unpack(seqs))
  redis.call('ZREM', q.requeued, unpack(seqs))
  redis.call('ZADD', q.delayed, unpack(members))
  q.ready_bytes = q.ready_bytes - log.size(entries)
  record.schedule_sweep(q, now)
end

--- Merge three orders into the result of `expiry.overdue`. `due` are members of the set `expiry` with their scores.
-- `back` has such members of the set of each state that has ended, or is false. Headers tell the dead ones of these.
function expiry.merge(q, now, most, due, back)
  local list = {at = {}, entry = {}, seqs = {}, past_retention = {}, away = {}, full = #due == 2 * most}
  candidates.retained(q, most, list, #due == 2 * most and tonumber(due[#due]) or now)
  candidates.indexed(q, list, due)
  for state in each('promoted') do
    local members = back and back[state.part]
    if members then candidates.promoted(q, now, list, q[state.part], members, #members == 2 * most) end
  end
  local at, seqs, dying = list.at, list.seqs, {}
  table.sort(seqs, function(a, b) return at[a] < at[b] or at[a] == at[b] and a < b end)
  local dead = {all = {}, past_retention = {dense = list.past_retention.dense}, past_deadline = {}, away = {},
    full = list.full or #seqs > most}
  for _, seq in ipairs(seqs) do
    local late = list.limit and at[seq] > list.limit and #dead.all > 0
    if #dead.all == most or not list.entry[seq] or late then
      dead.full = true
      break
    end
    dead.all[#dead.all + 1], dying[seq] = list.entry[seq], true
  end
  expiry.divide(dead, list, dying)
  return dead
end

--- Divide dying messages by place: at the head of the queue, ready anywhere, or in another state.
function expiry.divide(dead, list, dying)
  local heads = {}
  for _, entry in ipairs(list.past_retention) do
    if not dying[entry[1]] then break end
    dead.past_retention[#dead.past_retention + 1], heads[entry[1]] = entry, true
  end
  for _, entry in ipairs(dead.all) do
    local into = list.away[entry[1]] and dead.away or dead.past_deadline
    if not heads[entry[1]] then into[#into + 1] = entry end
  end
end
